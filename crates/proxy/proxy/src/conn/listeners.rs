//! The listeners of a worker, and whether they are armed.
//!
//! ```text
//! added ──> armed <──> paused
//!             └── retired ──no connection, or CHECKS_MAX checks──> closed
//! ```

use std::net::SocketAddr;

use millrace_engine::{Engine, Error, Fd, Key, TokenKind};

/// The listeners of a worker.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    listeners: Vec<Listener>,
    /// The number of listeners added so far, which gives each key its generation.
    added: u32,
    /// The number of retired listeners; `retired <= listeners.len()`.
    retired: usize,
    /// How often a draining worker has checked whether it may close its listeners; at most
    /// `CHECKS_MAX`.
    drain_checks: u32,
    /// The listeners are closed permanently.
    closed: bool,
    /// The input of the accept stage: an accepted connection with its peer's address (`None` for a
    /// Unix socket), or the error of a listener.
    pub(crate) accepted: Option<Result<(Fd, Option<SocketAddr>), Error>>,
}

#[derive(Debug)]
struct Listener {
    /// The slot is the listener's number. A retired listener may exist beside a newer one with the
    /// same number.
    key: Key,
    fd: Fd,
    armed: bool,
    /// A connection was accepted since the last [`Listeners::check_drained`] or
    /// [`Listeners::close_retired`].
    has_accepted: bool,
    /// The number of checks since the listener left the configuration. `None` if it is in the
    /// configuration.
    retire_checks: Option<u32>,
}

impl Listeners {
    /// Adds a listener, which is not armed yet.
    pub(crate) fn add(&mut self, number: u16, fd: Fd) {
        self.added += 1;
        let key = Key { slot: u32::from(number), generation: self.added };
        self.listeners.push(Listener {
            key,
            fd,
            armed: false,
            has_accepted: false,
            retire_checks: None,
        });
    }

    /// Returns the number of open listeners.
    pub(crate) fn len(&self) -> usize {
        self.listeners.len()
    }

    /// Arms the listeners that are not armed.
    pub(crate) fn resume(&mut self, engine: &mut impl Engine) {
        for listener in self.listeners.iter_mut().filter(|listener| !listener.armed) {
            listener.arm(engine);
        }
    }

    /// Disarms the listeners, except retired ones, whose queued connections have to be accepted
    /// before they close. Returns whether any listener was armed.
    pub(crate) fn pause(&mut self, engine: &mut impl Engine) -> bool {
        let mut any = false;
        for listener in
            self.listeners.iter_mut().filter(|it| it.armed && it.retire_checks.is_none())
        {
            engine.cancel_accept(&listener.fd);
            listener.armed = false;
            any = true;
        }
        any
    }

    /// Notes that the engine disarmed a listener after an error.
    pub(crate) fn note_disarmed(&mut self, key: Key) {
        for listener in self.listeners.iter_mut().filter(|listener| listener.key == key) {
            listener.armed = false;
        }
    }

    /// Notes that a listener accepted a connection.
    pub(crate) fn note_accepted(&mut self, key: Key) {
        for listener in self.listeners.iter_mut().filter(|listener| listener.key == key) {
            listener.has_accepted = true;
        }
    }

    /// Returns the descriptors of a listener that is in the configuration. There are several if
    /// this process took over from one with more workers.
    pub(crate) fn fds(&self, number: u16) -> impl Iterator<Item = &Fd> {
        let is_it = move |it: &&Listener| it.number() == number && it.retire_checks.is_none();
        self.listeners.iter().filter(is_it).map(|listener| &listener.fd)
    }

    /// Retires a listener that left the configuration. It closes once its queue is empty.
    pub(crate) fn retire(&mut self, engine: &mut impl Engine, number: u16) {
        for listener in self.listeners.iter_mut().filter(|listener| listener.number() == number) {
            self.retired += usize::from(listener.retire_checks.is_none());
            listener.retire_checks.get_or_insert(0);
            if !listener.armed {
                listener.arm(engine);
            }
        }
    }

    /// Returns whether this listener is retired and still open.
    pub(crate) fn is_retiring(&self, number: u16) -> bool {
        self.listeners.iter().any(|it| it.retire_checks.is_some() && it.number() == number)
    }

    /// Returns whether any retired listener is still open.
    pub(crate) fn has_retiring(&self) -> bool {
        self.retired > 0
    }

    /// Closes the retired listeners that accepted no connection since the last call, so that no
    /// connection in their queues is cut off. A listener that is never quiet is closed after
    /// `CHECKS_MAX` calls.
    pub(crate) fn close_retired(&mut self, engine: &mut impl Engine) {
        let mut index = 0;
        while let Some(listener) = self.listeners.get_mut(index) {
            index += 1;
            let Some(checks) = &mut listener.retire_checks else { continue };
            *checks += 1;
            // A listener that an error disarmed may still have connections in its queue.
            let is_quiet = listener.armed && !std::mem::take(&mut listener.has_accepted);
            if is_quiet || *checks > CHECKS_MAX {
                index -= 1;
                let listener = self.listeners.swap_remove(index);
                self.retired -= 1;
                engine.close(listener.fd);
            } else if !listener.armed {
                listener.arm(engine);
            }
        }
    }

    /// Checks whether a draining worker may close its listeners. Returns true if no connection was
    /// accepted since the last call, so that none in their queues is cut off. Returns true at the
    /// `CHECKS_MAX`th call in any case, since draining has to end.
    pub(crate) fn check_drained(&mut self) -> bool {
        self.drain_checks += 1;
        let mut has_accepted = false;
        for listener in &mut self.listeners {
            has_accepted |= std::mem::take(&mut listener.has_accepted);
        }
        !has_accepted || self.drain_checks >= CHECKS_MAX
    }

    /// Closes all listeners permanently.
    pub(crate) fn close_all(&mut self, engine: &mut impl Engine) {
        self.retired = 0;
        for listener in std::mem::take(&mut self.listeners) {
            if listener.armed {
                engine.cancel_accept(&listener.fd);
            }
            engine.close(listener.fd);
        }
        self.closed = true;
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.listeners.iter().any(|listener| !listener.armed)
    }
}

impl Listener {
    fn number(&self) -> u16 {
        self.key.slot as u16
    }

    fn arm(&mut self, engine: &mut impl Engine) {
        engine.accept(&self.fd, self.key.token(TokenKind::Listener));
        self.armed = true;
    }
}

/// The maximum number of checks, 100 ms apart, before a listener that is never quiet is closed.
const CHECKS_MAX: u32 = 10;
