//! The listeners of a worker, and whether they are armed.
//!
//! ```text
//! added ──> armed <──> paused
//!             └── retired ──nothing came, or asked often enough──> closed
//! ```

use std::net::SocketAddr;

use millrace_engine::{Engine, Error, Fd, Key, Kind};

/// Listeners, armed or paused.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    listeners: Vec<Listener>,
    /// Listeners taken in so far.
    added: u32,
    /// Those that are retired; `retired <= listeners.len()`.
    retired: usize,
    /// How often a draining worker asked whether it may close them; at most `ASKED_MAX`.
    drain_checks: u32,
    /// Nothing is accepted any more.
    closed: bool,
    /// What the accept stage is about to take: a connection with its client's address (`None`: a
    /// Unix socket), or why a listener accepts none.
    pub(crate) accepted: Option<Result<(Fd, Option<SocketAddr>), Error>>,
}

#[derive(Debug)]
struct Listener {
    /// Its number as slot. One that is closed soon may have a successor of the same number.
    key: Key,
    fd: Fd,
    armed: bool,
    /// A connection came since [`Listeners::check_drained`] or [`Listeners::close_retired`] was called.
    has_accepted: bool,
    /// It left the configuration; asked so often whether it may be closed.
    retire_checks: Option<u32>,
}

impl Listeners {
    /// Takes a listener in, not armed yet.
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

    /// Listeners that are open.
    pub(crate) fn len(&self) -> usize {
        self.listeners.len()
    }

    /// Arms what is not armed.
    pub(crate) fn resume(&mut self, engine: &mut impl Engine) {
        for listener in self.listeners.iter_mut().filter(|listener| !listener.armed) {
            listener.arm(engine);
        }
    }

    /// Disarms what is armed, unless it is to be closed soon: what is queued there has to come in
    /// before. Returns whether anything was.
    pub(crate) fn pause(&mut self, engine: &mut impl Engine) -> bool {
        let mut any = false;
        for listener in
            self.listeners.iter_mut().filter(|it| it.armed && it.retire_checks.is_none())
        {
            engine.accept_stop(&listener.fd);
            listener.armed = false;
            any = true;
        }
        any
    }

    /// The engine has disarmed a listener, after an error.
    pub(crate) fn note_disarmed(&mut self, key: Key) {
        for listener in self.listeners.iter_mut().filter(|listener| listener.key == key) {
            listener.armed = false;
        }
    }

    /// Notes that a connection came.
    pub(crate) fn note_accepted(&mut self, key: Key) {
        for listener in self.listeners.iter_mut().filter(|listener| listener.key == key) {
            listener.has_accepted = true;
        }
    }

    /// A listener's descriptors, to be set up anew; none if it could not be had, or is retired.
    /// There are several where this process took over from one with more workers.
    pub(crate) fn fds(&self, number: u16) -> impl Iterator<Item = &Fd> {
        let is_it = move |it: &&Listener| it.number() == number && it.retire_checks.is_none();
        self.listeners.iter().filter(is_it).map(|listener| &listener.fd)
    }

    /// A listener has left the configuration: it is closed once its queue was taken in.
    pub(crate) fn retire(&mut self, engine: &mut impl Engine, number: u16) {
        for listener in self.listeners.iter_mut().filter(|listener| listener.number() == number) {
            self.retired += usize::from(listener.retire_checks.is_none());
            listener.retire_checks.get_or_insert(0);
            if !listener.armed {
                listener.arm(engine);
            }
        }
    }

    /// Whether a listener waits to be closed.
    pub(crate) fn is_retiring(&self, number: u16) -> bool {
        self.listeners.iter().any(|it| it.retire_checks.is_some() && it.number() == number)
    }

    /// Whether any listener does.
    pub(crate) fn has_retiring(&self) -> bool {
        self.retired > 0
    }

    /// Closes the retired listeners where no connection came since this was called last, so that
    /// none is cut off in the queue behind them; where connections come all the time, at the
    /// `ASKED_MAX`th time.
    pub(crate) fn close_retired(&mut self, engine: &mut impl Engine) {
        let mut index = 0;
        while let Some(listener) = self.listeners.get_mut(index) {
            index += 1;
            let Some(asked) = &mut listener.retire_checks else { continue };
            *asked += 1;
            // One that an error has disarmed says nothing about its queue.
            let is_quiet = listener.armed && !std::mem::take(&mut listener.has_accepted);
            if is_quiet || *asked > CHECKS_MAX {
                index -= 1;
                let listener = self.listeners.swap_remove(index);
                self.retired -= 1;
                engine.close(listener.fd);
            } else if !listener.armed {
                listener.arm(engine);
            }
        }
    }

    /// Whether a draining worker may close its listeners: no connection came since this was asked
    /// last, so none is cut off in the queue behind them. Where connections come all the time, it
    /// is answered with yes at the `ASKED_MAX`th time: draining must end.
    pub(crate) fn check_drained(&mut self) -> bool {
        self.drain_checks += 1;
        let mut came = false;
        for listener in &mut self.listeners {
            came |= std::mem::take(&mut listener.has_accepted);
        }
        !came || self.drain_checks >= CHECKS_MAX
    }

    /// Accepts no more, for good, and closes the listeners.
    pub(crate) fn close_all(&mut self, engine: &mut impl Engine) {
        self.retired = 0;
        for listener in std::mem::take(&mut self.listeners) {
            if listener.armed {
                engine.accept_stop(&listener.fd);
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
        engine.accept(&self.fd, self.key.token(Kind::Listener));
        self.armed = true;
    }
}

/// Times that a draining worker, or one with a retired listener, asks, 100 ms apart.
const CHECKS_MAX: u32 = 10;
