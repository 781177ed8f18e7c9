//! Connections that the kernel redirects: rules that are made and removed, and applications that know nothing of it.

mod interception;
mod rules;
