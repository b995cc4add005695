//! The shared cache: what it may keep, when it may answer with it, and where it is found. No
//! sockets, no worker, no clock: times and bytes come as arguments.
#![forbid(unsafe_code)]

pub mod rules;
