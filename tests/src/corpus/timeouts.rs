//! Time limits and pauses of both sides of a case.

use std::time::Duration;

/// Limit of every wait before it counts as hung. It bounds a failure; no success waits for it.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// The pause between two segments, long enough that the other side nearly always reads them one by
/// one. No outcome depends on it.
pub const PAUSE: Duration = Duration::from_millis(4);

/// The pause between single bytes.
pub const TRICKLE: Duration = Duration::from_micros(200);
