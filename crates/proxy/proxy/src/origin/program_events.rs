//! Opens the connections to programs, receives responses on them, and closes them.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use iolite::{Account, AllocError, ChannelError, ProgramConnection, ProgramOptions};
use millrace_engine::{Engine, Key, Token, TokenKind};
use millrace_store::WaiterId;

use crate::core::Core;
use crate::exchange::Reason;
use crate::files::FileContext;
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
        ChannelError::Kernel("connect", _) => Reason::ConnectFailed,
        _ => Reason::Overloaded,
    })?;
    let socket = channel.copy_socket().map_err(|_| Reason::Overloaded)?;
    let fd = engine.adopt_socket(socket).map_err(|_| Reason::Overloaded)?;
    engine.poll_readable(&fd, slot.token(TokenKind::Program));
    programs.insert(ProgramConn {
        channel,
        path: path.clone(),
        fd,
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
    let uses = |file: &FileContext| file.program == Some(slot);
    let affected = core.exchanges.keys_where(|of| of.file.as_deref().is_some_and(uses));
    let waiters: Vec<WaiterId> =
        affected.into_iter().map(|key| core.waiter(key, TokenKind::Exchange)).collect();
    core.wake(waiters);
}

/// Receives a response, and returns the exchange that has it now; or returns an exchange that may
/// send its request now. Returns `None` when the worker has to wait for the program.
pub(crate) fn advance<E: Engine>(core: &mut Core<E>, slot: Key) -> Option<Key> {
    loop {
        let Core { engine, exchanges, origins, timers, .. } = core;
        let connection = origins.programs.connections.get_mut(slot)?;
        let token = slot.token(TokenKind::Program);
        let account = connection.channel.account();
        let is_full = account.held() >= account.bytes_max() / 4 * 3;
        let received = match is_full {
            true => Err(ChannelError::NoMemory(AllocError::Full)),
            false => connection.channel.try_receive(),
        };
        let next = received.and_then(|received| match received {
            Some(response) => {
                connection.has_responded = true;
                let key = Key::from(Token::from_bits(response.id));
                let exchange = exchanges.get_mut(key);
                let file = exchange.and_then(|exchange| exchange.file.as_deref_mut());
                let file = file.filter(|file| file.program == Some(slot));
                // A request that has ended needs no response.
                Ok(file.map_or(Next::Again, |file| {
                    file.response = Some(response);
                    Next::Exchange(key)
                }))
            }
            None => {
                connection.waiting.retain(|key| exchanges.get(*key).is_some());
                let first = connection.waiting.front().copied();
                Ok(match first {
                    Some(key) if connection.channel.check_room()? => Next::Exchange(key),
                    _ if connection.channel.prepare_to_wait()? => Next::Again,
                    _ => Next::Wait,
                })
            }
        });
        match next {
            Ok(Next::Exchange(key)) => return Some(key),
            Ok(Next::Again) => {}
            Ok(Next::Wait) => {
                engine.poll_readable(&connection.fd, token);
                return None;
            }
            Err(ChannelError::NoMemory(_)) => {
                connection.retry = Some(timers.insert(token, engine.now() + RETRY));
                return None;
            }
            Err(error) => {
                fail(core, slot, error);
                return None;
            }
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
    Again,
    Wait,
}

/// Memory for what is copied, which is taken as it is used: headers and short bodies.
const SLAB_BYTES: usize = 64 << 20;
/// The pool for bodies of requests, likewise.
const POOL_BYTES: usize = 64 << 20;
/// How soon responses are received again that found no memory.
const RETRY: Duration = Duration::from_millis(20);
