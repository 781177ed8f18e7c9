//! The lab as its users see it: files in, processes and sockets out.

mod topology_files;
