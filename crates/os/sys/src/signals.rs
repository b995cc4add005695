//! Signals for the supervising thread. They are blocked in every thread and waited for in one
//! place, so no signal handler ever runs.

use std::mem::MaybeUninit;
use std::ptr;
use std::time::Duration;

use rustix::io::Errno;

use crate::clock::timespec;
use crate::{Result, last_error};

/// A signal that the supervisor handles (signal(7)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Signal {
    /// SIGTERM: terminate.
    Terminate,
    /// SIGINT: terminate, as requested at the terminal.
    Interrupt,
    /// SIGHUP: reload the configuration.
    HangUp,
    /// SIGUSR1: reopen the log files.
    User1,
    /// SIGUSR2: a thread of this process has work for the supervising thread; see
    /// [`Signal::send_to_self`].
    User2,
}

impl Signal {
    const ALL: [Self; 5] =
        [Self::Terminate, Self::Interrupt, Self::HangUp, Self::User1, Self::User2];

    const fn number(self) -> i32 {
        match self {
            Self::Terminate => libc::SIGTERM,
            Self::Interrupt => libc::SIGINT,
            Self::HangUp => libc::SIGHUP,
            Self::User1 => libc::SIGUSR1,
            Self::User2 => libc::SIGUSR2,
        }
    }

    /// Sends the signal to this process, for the thread that waits for it. The signal must be
    /// blocked ([`Signals::block`]); otherwise its default action happens.
    pub fn send_to_self(self) {
        let process = std::process::id().cast_signed();
        // SAFETY: the call takes and returns only numbers.
        let sent = unsafe { libc::kill(process, self.number()) };
        assert!(sent == 0, "a process may signal itself");
    }
}

/// The set of all signals of [`Signal`]. Only [`Signals::block`] creates a value.
pub struct Signals(libc::sigset_t);

impl Signals {
    /// Blocks the signals in the calling thread, and in every thread that it starts from now on.
    /// Call it before any thread is started, since a signal is delivered to any thread that does
    /// not block it. A program that is started later inherits the mask and needs an empty one.
    ///
    /// # Errors
    /// Those of pthread_sigmask(3); none is known for these signals.
    pub fn block() -> Result<Self> {
        let mut set = MaybeUninit::uninit();
        // SAFETY: `set` is writable memory for a sigset_t; the call fills all of it.
        unsafe { libc::sigemptyset(set.as_mut_ptr()) };
        // SAFETY: sigemptyset filled it.
        let mut set = unsafe { set.assume_init() };
        for signal in Signal::ALL {
            // SAFETY: `set` is a filled signal set that this function alone has.
            unsafe { libc::sigaddset(&raw mut set, signal.number()) };
        }
        // SAFETY: `set` is filled and outlives the call; a null old set is allowed.
        let error =
            unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut()) };
        if error == 0 { Ok(Self(set)) } else { Err(Errno::from_raw_os_error(error)) }
    }

    /// Waits for the next signal, for at most `wait_max`. Returns `None` if there was none.
    ///
    /// # Errors
    /// Those of sigtimedwait(2), except that EAGAIN and EINTR return `None`.
    pub fn wait(&self, wait_max: Duration) -> Result<Option<Signal>> {
        let timeout = timespec(wait_max);
        // SAFETY: the set is filled, a null siginfo is allowed, and both outlive the call.
        let number =
            unsafe { libc::sigtimedwait(&raw const self.0, ptr::null_mut(), &raw const timeout) };
        if number >= 0 {
            return Ok(Signal::ALL.into_iter().find(|signal| signal.number() == number));
        }
        match last_error() {
            Errno::AGAIN | Errno::INTR => Ok(None),
            error => Err(error),
        }
    }
}

/// Makes a write to a closed pipe or socket return an error (EPIPE) instead of ending the process.
/// Sends use a flag for that (MSG_NOSIGNAL), which splice(2) does not have.
pub fn ignore_broken_pipe_signal() {
    // SAFETY: SIG_IGN runs no code, and SIGPIPE may be ignored.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blocked_signal_is_waited_for() {
        let signals = Signals::block().unwrap();
        assert_eq!(signals.wait(Duration::ZERO).unwrap(), None);
        for signal in Signal::ALL {
            // SAFETY: the signal is blocked in this thread, which is the only receiver.
            unsafe { libc::raise(signal.number()) };
            assert_eq!(signals.wait(Duration::from_secs(10)).unwrap(), Some(signal));
        }
    }
}
