//! Whether requests may be pipelined to an origin, which all workers share. A test of the origin
//! permits it. The first wrong response ends it until the process ends, because an origin that
//! miscounts gives one client the response to another client's request.

use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};

/// Whether requests may be pipelined to an origin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PipelineState {
    /// The origin is not tested yet.
    Untested,
    /// The origin has passed the test.
    Permitted,
    /// The origin has failed the test, or has sent a wrong response later.
    Ended(PipelineFault),
}

/// A fault of an origin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PipelineFault {
    /// It failed the test.
    FailedTest,
    /// It closed a connection although requests had no response, and had not announced that.
    ClosedEarly,
    /// It sent a response that is malformed, is cut, or does not fit the request.
    WrongResponse,
    /// It sent a response of HTTP/1.0, which has no pipelining.
    OldVersion,
    /// It sent bytes that no request caused.
    UnexpectedBytes,
}

impl fmt::Display for PipelineFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::FailedTest => "the test failed",
            Self::ClosedEarly => "a connection was closed while requests had no response",
            Self::WrongResponse => "a response was malformed or cut",
            Self::OldVersion => "a response was of HTTP/1.0",
            Self::UnexpectedBytes => "bytes arrived that no request caused",
        })
    }
}

/// A [`PipelineState`] that several threads read and change.
#[derive(Debug, Default)]
pub(crate) struct SharedPipelineState(AtomicU8);

const UNTESTED: u8 = 0;
const PERMITTED: u8 = 1;
/// The faults by their number, which begins at 2.
const FAULTS: [PipelineFault; 5] = [
    PipelineFault::FailedTest,
    PipelineFault::ClosedEarly,
    PipelineFault::WrongResponse,
    PipelineFault::OldVersion,
    PipelineFault::UnexpectedBytes,
];

impl SharedPipelineState {
    /// Returns the state.
    pub(crate) fn get(&self) -> PipelineState {
        // Pairs with the changes below. Relaxed is enough: no other memory depends on the value.
        match self.0.load(Ordering::Relaxed) {
            UNTESTED => PipelineState::Untested,
            PERMITTED => PipelineState::Permitted,
            fault => PipelineState::Ended(FAULTS[usize::from(fault) - 2]),
        }
    }

    /// Permits pipelining, unless it has ended.
    pub(crate) fn permit(&self) {
        // Pairs with the load in `get`. If the value is another one, it stays.
        let _ = self.0.compare_exchange(UNTESTED, PERMITTED, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Ends pipelining. Returns false if it had ended before.
    pub(crate) fn end(&self, fault: PipelineFault) -> bool {
        let number = FAULTS.iter().position(|&other| other == fault).expect("each is listed") + 2;
        // Pairs with the load in `get`.
        let update = |state| (state <= PERMITTED).then_some(number as u8);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, update).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_fault_ends_pipelining_for_ever() {
        for fault in FAULTS {
            let state = SharedPipelineState::default();
            assert_eq!(state.get(), PipelineState::Untested);
            state.permit();
            assert_eq!(state.get(), PipelineState::Permitted);
            assert!(state.end(fault));
            state.permit();
            assert!(!state.end(PipelineFault::FailedTest));
            assert_eq!(state.get(), PipelineState::Ended(fault));
        }
    }
}
