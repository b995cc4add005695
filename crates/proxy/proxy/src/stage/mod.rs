//! One module per stage; `exchange/stage.rs` has the table. Only `worker/driver.rs` calls them.

pub(crate) mod accept;
pub(crate) mod deliver;
pub(crate) mod fetch;
pub(crate) mod file;
pub(crate) mod log;
pub(crate) mod lookup;
pub(crate) mod parse;
pub(crate) mod receive;
pub(crate) mod route;
pub(crate) mod secure;
