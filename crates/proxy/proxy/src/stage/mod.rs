//! One module a stage; the table is in `flow.rs`.

pub(crate) mod accept;
pub(crate) mod deliver;
pub(crate) mod fetch;
pub(crate) mod log;
pub(crate) mod lookup;
pub(crate) mod parse;
pub(crate) mod route;
