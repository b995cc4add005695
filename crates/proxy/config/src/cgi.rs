//! The folder of CGI programs that a route runs. The program starts their launcher.

use std::any::Any;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::Origin;
use crate::error::ConfigError;
use crate::raw::RawTable;
use crate::value;

/// A folder of CGI programs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CgiRoute {
    /// The path, as configured.
    pub folder: PathBuf,
    /// The number of the folder for the launcher. 0 until the program has started it.
    pub number: usize,
    /// The launcher; `None` until the program has started it.
    pub launcher: Option<LauncherHandle>,
}

/// Keeps the launcher of programs running, until the last configuration that uses it is dropped.
#[derive(Clone)]
pub struct LauncherHandle(Arc<dyn Any + Send + Sync>);

impl LauncherHandle {
    /// Creates a handle of a launcher that ends when `launcher` is dropped.
    pub fn new(launcher: Arc<dyn Any + Send + Sync>) -> Self {
        Self(launcher)
    }
}

impl PartialEq for LauncherHandle {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for LauncherHandle {}

impl fmt::Debug for LauncherHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LauncherHandle")
    }
}

/// Builds the folder of CGI programs.
pub(crate) fn build(values: &RawTable) -> Result<Option<CgiRoute>, ConfigError> {
    let folder = values.one("cgi", value::parse_file_path)?;
    Ok(folder.map(|folder| CgiRoute { folder, number: 0, launcher: None }))
}

/// Returns the origin of a route with programs until the launcher was started.
pub(crate) fn placeholder() -> Origin {
    Origin::Unix(Path::new("cgi").into())
}
