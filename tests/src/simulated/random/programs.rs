//! FastCGI programs of random scenarios: origins that speak FastCGI instead of HTTP. They respond
//! as planned, and their faults are those of programs. The code shares nothing with the proxy.

pub(super) mod generate;
pub(super) mod reader;
pub(super) mod wire;
