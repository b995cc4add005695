//! Time limits and pauses of both sides of a case.

use std::time::Duration;

/// Limit of every wait. A wait that reaches it fails.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// The pause between two segments. It is long enough that the other side usually reads them one by
/// one, but no outcome depends on that.
pub const PAUSE: Duration = Duration::from_millis(4);

/// The pause between single bytes.
pub const TRICKLE: Duration = Duration::from_micros(200);
