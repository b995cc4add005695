//! The listeners of a worker, and whether they are armed.

use millrace_event::{Engine, Fd, Kind, Token};

/// Listeners, armed or paused.
#[derive(Debug)]
pub(crate) struct Accepting {
    listeners: Vec<Listener>,
    /// Idle connections are to be closed, to make room.
    pub(crate) shed: bool,
    /// A connection came since somebody asked.
    came: bool,
    /// How often a draining worker asked whether it may close them; at most `ASKED_MAX`.
    asked: u32,
    /// Nothing is accepted any more.
    ended: bool,
}

#[derive(Debug)]
struct Listener {
    index: u16,
    fd: Fd,
    armed: bool,
}

impl Accepting {
    pub(crate) fn new(listeners: Vec<(u16, Fd)>) -> Self {
        let listeners =
            listeners.into_iter().map(|(index, fd)| Listener { index, fd, armed: false }).collect();
        Self { listeners, shed: false, came: false, asked: 0, ended: false }
    }

    /// Arms what is not armed.
    pub(crate) fn resume(&mut self, engine: &mut impl Engine) {
        for listener in self.listeners.iter_mut().filter(|listener| !listener.armed) {
            engine.accept(&listener.fd, Token::new(Kind::Listener, u32::from(listener.index), 0));
            listener.armed = true;
        }
    }

    /// Disarms what is armed. Gives whether anything was.
    pub(crate) fn pause(&mut self, engine: &mut impl Engine) -> bool {
        let mut any = false;
        for listener in self.listeners.iter_mut().filter(|listener| listener.armed) {
            engine.accept_stop(&listener.fd);
            listener.armed = false;
            any = true;
        }
        any
    }

    /// The engine has disarmed a listener, after an error.
    pub(crate) fn disarmed(&mut self, index: u16) {
        for listener in self.listeners.iter_mut().filter(|listener| listener.index == index) {
            listener.armed = false;
        }
    }

    /// Notes that a connection came.
    pub(crate) fn came(&mut self) {
        self.came = true;
    }

    /// Whether a draining worker may close its listeners: no connection came since this was asked
    /// last, so none is cut off in the queue behind them. Where connections come all the time, it
    /// is answered with yes at the `ASKED_MAX`th time: draining must end.
    pub(crate) fn may_end(&mut self) -> bool {
        self.asked += 1;
        !std::mem::take(&mut self.came) || self.asked >= ASKED_MAX
    }

    /// Accepts no more, for good, and closes the listeners.
    pub(crate) fn end(&mut self, engine: &mut impl Engine) {
        self.pause(engine);
        for listener in std::mem::take(&mut self.listeners) {
            engine.close(listener.fd);
        }
        self.ended = true;
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.listeners.iter().any(|listener| !listener.armed)
    }
}

/// Times that a draining worker asks, 100 ms apart.
const ASKED_MAX: u32 = 10;
