//! The page of a channel, in which one side publishes its state to the other one. It may have a
//! ring of frames.
//!
//! ```text
//!   word 0   frames that this side has put into its ring, in all
//!   word 1   frames of the other side that this side has passed, in all
//!   word 2   how this side waits for frames, and the number of the wait; word 3: for room
//!   word 4   the position in a stream beside the channel, as its user numbers it
//!   word 5   the bytes that were returned to the program
//!   word 8   the ring: 4 words for each frame
//!   then     the bytes of frames: another ring
//! ```
//!
//! The first words share a cache line, because the other side reads them together. Their lower
//! halves are futexes.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::error::Error;
use crate::packet::{FRAME_WORDS, Frame};
use crate::pool::words::{OwnWords, PeerWords, WORD_BYTES};
use crate::sealed::RefusedMemory;

const TAIL: usize = 0;
const PASSED: usize = 1;
const WAITS_FOR_FRAMES: usize = 2;
const WAITS_FOR_ROOM: usize = 3;
const STREAM: usize = 4;
const RETURNED: usize = 5;
const RING: usize = 8;

/// The size of a side's ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RingSize {
    pub(super) frames: usize,
    /// The words for the bytes of frames.
    pub(super) words: usize,
}

impl RingSize {
    /// Returns the word of the page at which the bytes of frames begin.
    const fn first_byte_word(self) -> usize {
        RING + self.frames * FRAME_WORDS
    }

    const fn page_words(self) -> usize {
        self.first_byte_word() + self.words
    }
}

/// How a side waits for the other one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Waiting {
    No = 0,
    /// By futex(2).
    Futex = 1,
    /// By poll(2), for a packet.
    Packet = 2,
}

/// The bits of a word that say how a side waits. The others number its waits.
const WAITING_BITS: u32 = 2;

/// The reason of a wait or a wake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WaitFor {
    Frames,
    Room,
}

impl WaitFor {
    /// The word that says how a side waits.
    const fn waits_word(self) -> usize {
        match self {
            Self::Frames => WAITS_FOR_FRAMES,
            Self::Room => WAITS_FOR_ROOM,
        }
    }

    /// The word of the other side that changes when the wait ends.
    const fn event_word(self) -> usize {
        match self {
            Self::Frames => TAIL,
            Self::Room => PASSED,
        }
    }
}

/// The page of this side.
#[derive(Debug)]
pub(super) struct OwnPage {
    pub(super) words: OwnWords,
    pub(super) ring: RingSize,
}

impl OwnPage {
    pub(super) fn new(ring: RingSize) -> Result<Self, Error> {
        Ok(Self { words: OwnWords::new(ring.page_words())?, ring })
    }

    /// Writes a frame into the ring. It is visible when it is published.
    pub(super) fn write(&self, position: u64, frame: Frame) {
        let first = RING + (position % self.ring.frames as u64) as usize * FRAME_WORDS;
        for (at, word) in frame.to_words().into_iter().enumerate() {
            self.words.word(first + at).store(word, Ordering::Relaxed);
        }
    }

    /// Writes the bytes of a frame into the ring, from a word on. They are visible when the frame
    /// is.
    pub(super) fn write_bytes(&self, word: usize, bytes: &[u8]) {
        self.words.write(self.ring.first_byte_word() + word, bytes);
    }

    /// Publishes all frames before `position`. SeqCst: the caller reads afterwards whether the
    /// other side waits. Either it sees that, or the other side sees the frames before it sleeps.
    pub(super) fn publish(&self, position: u64) {
        self.words.word(TAIL).store(position, Ordering::SeqCst);
    }

    /// Publishes how many frames of the other side were passed. Their memory is held now. SeqCst:
    /// as in `publish`.
    pub(super) fn set_passed(&self, passed: u64) {
        self.words.word(PASSED).store(passed, Ordering::SeqCst);
    }

    /// Publishes a number. SeqCst: callers order it with system calls.
    pub(super) fn set_stream(&self, number: u64) {
        self.words.word(STREAM).store(number, Ordering::SeqCst);
    }

    /// Publishes how many bytes were returned to the program. Release: it pairs with the load in
    /// [`PeerPage::returned`].
    pub(super) fn set_returned(&self, bytes: u64) {
        self.words.word(RETURNED).store(bytes, Ordering::Release);
    }

    /// Begins or ends a wait. Each one has another number, so that the other side wakes it once.
    pub(super) fn set_waiting(&self, wait_for: WaitFor, waiting: Waiting) {
        let word = self.words.word(wait_for.waits_word());
        let next = (word.load(Ordering::Relaxed) >> WAITING_BITS).wrapping_add(1);
        word.store(next << WAITING_BITS | waiting as u64, Ordering::SeqCst);
    }

    /// Wakes the other side, if it waits by futex.
    pub(super) fn wake(&self, event: WaitFor) {
        // It fails only for memory that is not mapped.
        let _ = millrace_sys::futex_wake(self.words.half_word(event.event_word()));
    }
}

/// The page of the other side.
#[derive(Debug)]
pub(super) struct PeerPage {
    words: PeerWords,
    pub(super) ring: RingSize,
}

impl PeerPage {
    pub(super) fn accept(file: &OwnedFd, ring: RingSize) -> Result<Self, RefusedMemory> {
        Ok(Self { words: PeerWords::accept(file, ring.page_words())?, ring })
    }

    pub(super) fn tail(&self) -> u64 {
        self.words.word(TAIL).load(Ordering::SeqCst)
    }

    pub(super) fn passed(&self) -> u64 {
        self.words.word(PASSED).load(Ordering::SeqCst)
    }

    pub(super) fn stream(&self) -> u64 {
        self.words.word(STREAM).load(Ordering::SeqCst)
    }

    /// Acquire: it pairs with the store in [`OwnPage::set_returned`].
    pub(super) fn returned(&self) -> u64 {
        self.words.word(RETURNED).load(Ordering::Acquire)
    }

    /// Reads a frame of the ring. The other side may change it any time; only this copy counts.
    pub(super) fn frame(&self, position: u64) -> Option<Frame> {
        let first = RING + (position % self.ring.frames as u64) as usize * FRAME_WORDS;
        let word = |at| self.words.word(first + at).load(Ordering::Relaxed);
        Frame::from_words([word(0), word(1), word(2), word(3)])
    }

    /// Copies bytes of a frame from a word of the ring on.
    pub(super) fn read_bytes(&self, word: usize, bytes: &mut [u8]) {
        self.words.read(self.ring.first_byte_word() + word, bytes);
    }

    /// Returns whether the ring has these bytes.
    pub(super) fn has_bytes(&self, word: usize, length: usize) -> bool {
        word.checked_add(length.div_ceil(WORD_BYTES)).is_some_and(|end| end <= self.ring.words)
    }

    /// Returns how the other side waits, and the word that has the number of the wait.
    pub(super) fn waiting(&self, wait_for: WaitFor) -> (Waiting, u64) {
        let word = self.words.word(wait_for.waits_word()).load(Ordering::SeqCst);
        let by = word & ((1 << WAITING_BITS) - 1);
        let all = [Waiting::Futex, Waiting::Packet];
        (all.into_iter().find(|of| *of as u64 == by).unwrap_or(Waiting::No), word)
    }

    /// Returns whether the word of a wait has not changed.
    pub(super) fn is_same(&self, wait_for: WaitFor, seen: u64) -> bool {
        self.words.word(wait_for.event_word()).load(Ordering::SeqCst) == seen
    }

    /// Waits until the other side's frames or passed frames are no longer `seen`, at most for
    /// `wait_max`.
    pub(super) fn wait(&self, wait_for: WaitFor, seen: u64, wait_max: Duration) {
        let word = self.words.half_word(wait_for.event_word());
        // It fails only for memory that is not mapped.
        let _ = millrace_sys::futex_wait(word, seen as u32, wait_max);
    }
}
