//! Bugs planted on purpose, to see whether the simulator finds them (docs/design/faults.md).
//!
//! Each stands as one condition where a bug of its kind would be. The feature `planted-faults`,
//! which no program is built with, lets a thread pick one; without it [`planted`] is a constant
//! `false`, and the conditions are compiled to nothing.

macro_rules! faults {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        /// A bug that can be planted, by what it does.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Fault {
            $($(#[$doc])* $name,)*
        }

        #[cfg(feature = "planted-faults")]
        impl Fault {
            /// All of them, in the order in which they are declared.
            pub const ALL: &[Self] = &[$(Self::$name,)*];
        }
    };
}

faults! {
    /// A letter wakes nobody (`Outbox::flush`).
    WakeLost;
    /// An object is found by a key of one that was in its slot before (`Table::get`).
    StaleToken;
    /// An origin's timer that came too early is not set again (`origin_deadline`).
    DeadlineMissed;
    /// A pipelined answer does not wait for those before it (`deliver::run`).
    TurnIgnored;
    /// A pipelined answer that waited for its turn is not told that it has come (`flow::resume`).
    TurnLost;
    /// A connection is kept although bytes after its answer are unread (`may_be_kept`).
    UnreadKept;
    /// A connection is kept although its response began before the end of the request body was sent
    /// (`lets_it_live`).
    EarlyKept;
    /// When one byte is left in a pipe, it counts as empty (`Pipe::drained`).
    PipeByteLost;
    /// What an exchange that broke off took of the budget is not given back (`log::finish`).
    ChargeForgotten;
    /// A buffer whose bytes join others is recycled twice (`Input::take`).
    BufferTwice;
    /// A buffer that came for a connection that is gone is not recycled (`client_received`).
    BufferKept;
    /// A request that is not idempotent is sent again when its connection ends (`origin_ended`).
    PostRepeated;
    /// A client whose answer broke off is closed in order, not reset (`log::run`).
    CutLooksWhole;
    /// A request that finds no room for the second time leaves the line (`wait_for_room`).
    WaiterForgotten;
    /// An address that cannot be connected to keeps its descriptor (`handle_connected`).
    DescriptorLeaked;
    /// A tunnel's client that ended its direction is not told of to the origin (`tunnel`).
    HalfCloseLost;
    /// The end of a chunked body that comes alone is not passed on (`Transfer::pump`).
    TerminatorLost;
    /// A pipe that a broken transfer left bytes in serves the next one (`Pipes::give`).
    DirtyPipeKept;
    /// Attempts that a faster one has made needless keep their descriptors (`dial::abandon`).
    RaceLeaks;
    /// A connection that a full mailbox gave back is dropped (`hand_over`).
    LetterDropped;
    /// A worker that drains ends before its last connection (`Worker::turn`).
    DrainForgets;
    /// A kept connection whose end is announced stays among those to give out (`origin_received`).
    KeptEnded;
    /// Who waits for something of the cache in the same worker is not told that it came (`wake`).
    CacheWakeLost;
    /// Who leaves while others wait for what it fetches does not let them go (`leave_cache`).
    ClaimKept;
    /// What has to be validated first is taken for fresh (`lookup::run`).
    StaleTaken;
    /// What is stored for one variant is given for all (`keep::draft`).
    VariantLost;
    /// A body in chunks whose end is missing counts as whole (`fill::ended`).
    CutKept;
    /// What a request has changed stays as it was stored (`make_invalid`).
    InvalidKept;
    /// Who fills what is only passed on is not told that a reader has gone on (`download_kept`).
    RoomUntold;
    /// Each member of a list is searched for in the whole list again (`has_passed_here`).
    ListReread;
}

/// Those that change nothing but the work for a message: a test counts it
/// (`tests/tests/growth.rs`), since the simulator cannot see it.
#[cfg(feature = "planted-faults")]
pub const COSTLY: &[Fault] = &[Fault::ListReread];

#[cfg(feature = "planted-faults")]
mod picked {
    use super::Fault;
    use std::cell::Cell;

    thread_local! {
        /// Of a thread, so that several worlds can be played at a time.
        static PLANTED: Cell<Option<Fault>> = const { Cell::new(None) };
    }

    /// Plants `fault` in whatever this thread runs from now on; `None` takes it out.
    pub fn plant(fault: Option<Fault>) {
        PLANTED.set(fault);
    }

    /// Whether `fault` is planted in this thread.
    pub fn planted(fault: Fault) -> bool {
        PLANTED.get() == Some(fault)
    }
}

#[cfg(feature = "planted-faults")]
pub use picked::{plant, planted};

/// Whether `fault` is planted: never, in this build.
#[cfg(not(feature = "planted-faults"))]
#[inline(always)]
pub const fn planted(_fault: Fault) -> bool {
    false
}
