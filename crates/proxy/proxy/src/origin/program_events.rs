//! Opens the connections to programs, receives responses on them, and closes them.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use iolite::{Account, ChannelError, ProgramConnection, ProgramOptions};
use millrace_config::Origin;
use millrace_engine::{Engine, Key, Table, Token, TokenKind};
use millrace_store::WaiterId;

use crate::core::Core;
use crate::exchange::{Exchange, Reason};
use crate::files::{FileContext, ProgramUse};
use crate::origin::program_table::ProgramConn;

/// Returns the connection to the program that listens at `path`, and opens it if there is none.
///
/// # Errors
/// The reason why it cannot be opened.
pub(super) fn connect<E: Engine>(core: &mut Core<E>, path: &Arc<Path>) -> Result<Key, Reason> {
    let Core { engine, origins, snapshot, counters, .. } = core;
    let programs = &mut origins.programs.connections;
    if let Some((slot, _)) = programs.iter().find(|(_, of)| of.path == *path) {
        return Ok(slot);
    }
    let slot = programs.next_key().ok_or(Reason::Overloaded)?;
    let options = ProgramOptions {
        slab_bytes: SLAB_BYTES,
        account: Account::new(snapshot.limits().program_memory_bytes),
        pool_bytes: POOL_BYTES,
        header_bytes_max: snapshot.response_limits.bytes_max,
    };
    let channel = ProgramConnection::connect(path, options).map_err(|error| match error {
        ChannelError::Kernel("connect" | "sendmsg", _) => Reason::ConnectFailed,
        _ => Reason::Overloaded,
    })?;
    let socket = channel.copy_socket().map_err(|_| Reason::Overloaded)?;
    let fd = engine.adopt_socket(socket).map_err(|_| Reason::Overloaded)?;
    engine.poll_readable(&fd, slot.token(TokenKind::Program));
    programs.insert(ProgramConn {
        channel,
        path: path.clone(),
        fd,
        is_polled: true,
        has_responded: false,
        waiting: VecDeque::new(),
        retry: None,
    });
    counters.origin_connections_opened.add(1);
    Ok(slot)
}

/// Closes a connection. Exchanges whose requests it carries are woken.
pub(super) fn fail<E: Engine>(core: &mut Core<E>, slot: Key, error: ChannelError) {
    let Some(connection) = core.origins.programs.connections.remove(slot) else { return };
    if error != ChannelError::Closed {
        let path = connection.path.display();
        (core.shared.notify_operator)(&format!("the program at {path} was disconnected: {error}"));
    }
    if let Some(timer) = connection.retry {
        core.timers.remove(timer);
    }
    core.engine.close(connection.fd);
    let users = users(core, slot).into_iter();
    let waiters: Vec<WaiterId> = users.map(|key| core.waiter(key, TokenKind::Exchange)).collect();
    core.wake(waiters);
}

/// Returns the exchanges whose requests a connection carries, or will carry.
fn users<E: Engine>(core: &Core<E>, slot: Key) -> Vec<Key> {
    let uses = |file: &FileContext| file.program.is_some_and(|of| of.slot == slot);
    core.exchanges.keys_where(|of| of.file.as_deref().is_some_and(uses))
}

/// Receives a response, and returns the exchange that has it now; or returns an exchange that may
/// send its request now. Returns `None` when the worker has to wait for the program.
pub(crate) fn advance<E: Engine>(core: &mut Core<E>, slot: Key) -> Option<Key> {
    let mut useless = 0;
    while useless < USELESS_COST_MAX {
        let Core { engine, exchanges, origins, .. } = core;
        let connection = origins.programs.connections.get_mut(slot)?;
        match next(connection, slot, exchanges) {
            Ok(Next::Exchange(key)) => return Some(key),
            Ok(Next::Again { cost }) => useless += cost,
            Ok(Next::Wait) if connection.is_polled => return None,
            Ok(Next::Wait) => {
                connection.is_polled = true;
                engine.poll_readable(&connection.fd, slot.token(TokenKind::Program));
                return None;
            }
            Err(ChannelError::NoMemory(_)) => {
                retry_after(core, slot, RETRY);
                return None;
            }
            Err(error) => {
                fail(core, slot, error);
                return None;
            }
        }
    }
    // Other connections have their turn.
    retry_after(core, slot, Duration::ZERO);
    None
}

/// Receives a response, or finds out why there is none.
fn next(
    connection: &mut ProgramConn,
    slot: Key,
    exchanges: &mut Table<Box<Exchange>>,
) -> Result<Next, ChannelError> {
    if let Some(response) = connection.channel.try_receive()? {
        connection.has_responded = true;
        let key = Key::from(Token::from_bits(response.id));
        let file = exchanges.get_mut(key).and_then(|exchange| exchange.file.as_deref_mut());
        let sent = Some(ProgramUse { slot, is_sent: true });
        // A request that has ended needs no response.
        let cost = 1 + response.body.len() / COST_BYTES;
        return Ok(file.filter(|file| file.program == sent).map_or(Next::Again { cost }, |file| {
            file.response = Some(response);
            Next::Exchange(key)
        }));
    }
    let waits = Some(ProgramUse { slot, is_sent: false });
    let program_of = |key| exchanges.get(key)?.file.as_deref()?.program;
    connection.waiting.retain(|key| program_of(*key) == waits);
    Ok(match connection.waiting.front() {
        Some(key) if connection.channel.check_room()? => Next::Exchange(*key),
        _ if connection.channel.prepare_to_wait()? => Next::Again { cost: 1 },
        _ => Next::Wait,
    })
}

/// Has responses received again after some time.
fn retry_after<E: Engine>(core: &mut Core<E>, slot: Key, pause: Duration) {
    let Core { engine, origins, timers, .. } = core;
    let due = engine.now() + pause;
    if let Some(connection) = origins.programs.connections.get_mut(slot) {
        let token = slot.token(TokenKind::Program);
        connection.retry.get_or_insert_with(|| timers.insert(token, due));
    }
}

/// Notes that the poll of a connection has ended.
pub(crate) fn note_readable<E: Engine>(core: &mut Core<E>, slot: Key) {
    if let Some(connection) = core.origins.programs.connections.get_mut(slot) {
        connection.is_polled = false;
    }
}

/// Wakes a program to which requests were sent, or for which requests wait. Returns whether there
/// is something to receive.
#[inline(never)]
pub(crate) fn settle<E: Engine>(core: &mut Core<E>, slot: Key) -> bool {
    let Some(connection) = core.origins.programs.connections.get_mut(slot) else { return false };
    connection.channel.prepare_to_wait().unwrap_or_else(|error| {
        fail(core, slot, error);
        false
    })
}

/// Closes the connections to programs that the configuration in force does not have, unless
/// exchanges use them.
pub(crate) fn close_unused<E: Engine>(core: &mut Core<E>) {
    let config = &core.snapshot.config;
    let origins = || config.services.iter().flat_map(|it| it.routes()).flat_map(|it| &it.origins);
    let is_used =
        |path: &Arc<Path>| origins().any(|it| matches!(it, Origin::Unix(of) if of == path));
    let unused = core.origins.programs.connections.keys_where(|of| !is_used(&of.path));
    for slot in unused {
        if users(core, slot).is_empty() {
            fail(core, slot, ChannelError::Closed);
        }
    }
}

/// Handles the timer of a connection: responses may be received again.
pub(crate) fn handle_timer<E: Engine>(core: &mut Core<E>, slot: Key) {
    if let Some(connection) = core.origins.programs.connections.get_mut(slot)
        && let Some(timer) = connection.retry.take()
    {
        core.timers.remove(timer);
    }
}

/// The step after a look at a connection.
enum Next {
    Exchange(Key),
    /// There may be more, after a response that no exchange needs, at this cost.
    Again {
        cost: u64,
    },
    Wait,
}

/// Memory for what is copied, which is taken as it is used: headers and short bodies.
const SLAB_BYTES: usize = 64 << 20;
/// The pool for bodies of requests, likewise.
const POOL_BYTES: usize = 64 << 20;
/// The cost of responses in a row that are for no exchange, before other connections have their
/// turn: 1 for each, and for each [`COST_BYTES`] of them.
const USELESS_COST_MAX: u64 = 256;
const COST_BYTES: u64 = 256 * 1024;
/// How soon responses are received again that found no memory.
const RETRY: Duration = Duration::from_millis(20);
