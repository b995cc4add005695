//! Reports what programs behind FastCGI write to their standard error.

use crate::conn::wire::Wire;
use crate::shared::SharedState;

/// Reports the standard error of the present request of a FastCGI connection to the operator. Later
/// bytes need another call.
#[inline(never)]
pub(crate) fn report(shared: &SharedState, wire: &mut Wire) {
    if let Some((target, errors)) = wire.take_program_errors() {
        let (target, text) = (target.escape_ascii(), errors.trim_ascii().escape_ascii());
        (shared.notify_operator)(&format!("the program of {target} wrote: {text}"));
    }
}
