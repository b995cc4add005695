//! Closing and resetting origin connections.

use millrace_engine::{Engine, Key};

use crate::core::Core;
use crate::origin::{OriginConn, displaced, fastcgi_errors};

/// Resets the origin connection of the exchange, if it has one, so that the origin sees an error
/// rather than an orderly end.
pub(crate) fn reset<E: Engine>(core: &mut Core<E>, key: Key) {
    if let Some(origin_use) = core.exchange(key).transaction.connection.take()
        && let Some(connection) = remove(core, origin_use.slot())
    {
        connection.wire.reset(&mut core.engine);
    }
}

/// Closes an origin connection, whether it is idle or in use.
pub(crate) fn close<E: Engine>(core: &mut Core<E>, slot: Key) {
    if let Some(connection) = remove(core, slot) {
        match connection.wire.has_records() {
            true => close_program(core, connection),
            false => connection.wire.close(&mut core.engine),
        }
    }
}

/// Closes the connection of a FastCGI server.
#[inline(never)]
fn close_program<E: Engine>(core: &mut Core<E>, mut connection: OriginConn) {
    fastcgi_errors::report(&core.shared, &mut connection.wire);
    connection.wire.close(&mut core.engine);
}

#[inline(always)]
fn remove<E: Engine>(core: &mut Core<E>, slot: Key) -> Option<OriginConn> {
    let mut connection = core.origins.remove(slot)?;
    core.timers.remove(connection.timer);
    if connection.uses.has_followers() {
        displaced::displace(core, connection.uses.cut(None));
    }
    Some(connection)
}
