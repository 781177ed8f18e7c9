//! The brain in a network of brains, driven as the editors drive it.

mod asking;
mod association;
mod faults;
mod gaps;
mod hold;
mod leases;
mod monkey;
mod random;
