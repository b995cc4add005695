//! A load generator that a slow server does not slow down.
//!
//! A [`RequestPlan`] has the times of all requests. [`Surge`] plans those of the users of a web
//! site with a [`FileSet`], [`Rate`] those for one object at a rate. A plan never depends on
//! responses. [`run`] begins each request at its time and checks each response. [`LoadReport`] has
//! the results.
//!
//! ```text
//!   Surge or Rate ──> Generator: due requests ──> LoadConnection ──> server
//!                         │                             │
//!                      Recorder <── ResponseReader <────┘
//! ```

mod connection;
pub mod file_set;
mod generator;
pub mod pattern;
pub mod plan;
pub mod rate;
mod recorder;
pub mod references;
pub mod report;
mod response;
pub mod settings;
pub mod surge;

pub use file_set::{FileSet, FileSetModel};
pub use generator::run;
pub use plan::RequestPlan;
pub use rate::{Arrivals, Rate};
pub use report::LoadReport;
pub use settings::{ConnectionReuse, LoadSettings, LoadTarget};
pub use surge::Surge;
