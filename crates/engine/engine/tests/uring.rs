//! The contract of an engine, kept by [`millrace_engine::UringEngine`].

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod conformance;

type Tested = millrace_engine::UringEngine;

/// This engine needs no preparation.
fn prepare() {}
