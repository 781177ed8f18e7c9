//! The editor byte by byte.
