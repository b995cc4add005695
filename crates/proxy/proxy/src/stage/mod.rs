//! One module per stage; the table is in `exchange/stage.rs`. Only `worker/driver.rs` calls them.

pub(crate) mod accept;
pub(crate) mod deliver;
pub(crate) mod fetch;
pub(crate) mod log;
pub(crate) mod lookup;
pub(crate) mod parse;
pub(crate) mod route;
