//! How long the two sides of a case wait.

use std::time::Duration;

/// How long anything may take before it counts as hanging. It bounds a failure; no success waits
/// for it.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// The pause between two segments: long enough that the other side nearly always reads them one by
/// one. No verdict depends on it.
pub const PAUSE: Duration = Duration::from_millis(4);

/// The pause between single bytes.
pub const TRICKLE: Duration = Duration::from_micros(200);
