//! The brain in a network of brains, driven as the editors drive it.

mod asking;
mod association;
mod carriers;
mod cuts;
mod exclusive;
mod faults;
mod gaps;
mod hold;
mod ladder;
mod leases;
mod monkey;
mod ordinary;
mod outcomes;
mod random;
mod replicas;
mod simulation;
mod streams;
mod table;
