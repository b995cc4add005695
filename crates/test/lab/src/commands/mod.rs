//! The commands of the program.

pub(crate) mod eviction;
pub(crate) mod load;
pub(crate) mod profile;
pub(crate) mod wan;
