//! Black-box tests of millrace, and their support code.
#![forbid(unsafe_code)]

pub mod border;
pub mod connection;
pub mod corpus;
pub mod counts;
pub mod differential;
pub mod growth;
pub mod pipelined;
pub mod poison;
pub mod real;
pub mod scenario;
pub mod simulated;
pub mod strict;
pub mod traversal;
