//! One run of a program: its standard streams are connected with a connection of millrace until it
//! ends, runs too long, or millrace closes the connection. It is killed with its group then.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use millrace_fastcgi::{ERROR_BYTES_MAX, OutputStream, RequestDecoder, RequestPart};
use millrace_sys::{Errno, Interest};

use crate::limits::{OUTPUT_BYTES_MAX, READ_BYTES_MAX};
use crate::link::{Closed, Link};
use crate::programs::RunningProgram;

/// How a run ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// The output is complete; the exit status.
    Complete(u32),
    /// The output is cut: a signal killed the program, or its time was over.
    Cut,
    /// The time was over before the first byte of output.
    TimedOut,
}

/// The numbers of the descriptors of a run; see [`Link::wait`].
const INPUT: u64 = 1;
const OUTPUT: u64 = 2;
const ERRORS: u64 = 3;
const END: u64 = 4;

struct Run<'c, 'p> {
    link: &'c mut Link,
    decoder: &'c mut RequestDecoder,
    program: RunningProgram<'p>,
    /// Whether bytes of the body wait for the program to read.
    has_input: bool,
    has_output: bool,
    /// Bytes of standard error that may still be kept.
    errors_left: usize,
    has_exited: bool,
}

/// Connects a program with `link` until its end.
///
/// # Errors
/// [`Closed`] if millrace left. The program was killed then.
pub(crate) fn run(
    link: &mut Link,
    decoder: &mut RequestDecoder,
    program: RunningProgram<'_>,
    time: Duration,
) -> Result<Outcome, Closed> {
    let end = Instant::now() + time;
    let mut run = Run {
        link,
        decoder,
        program,
        has_input: false,
        has_output: false,
        errors_left: ERROR_BYTES_MAX,
        has_exited: false,
    };
    loop {
        run.pass_input()?;
        if run.has_exited && run.read_rest() {
            let status = run.program.finish();
            return Ok(match status {
                Some(status) => Outcome::Complete(status),
                // Nothing says that the output is complete.
                None if run.has_output => Outcome::Cut,
                None => Outcome::Complete(1),
            });
        }
        if Instant::now() >= end {
            run.program.finish();
            return Ok(if run.has_output { Outcome::Cut } else { Outcome::TimedOut });
        }
        run.wait(end)?;
    }
}

impl Run<'_, '_> {
    fn wait(&mut self, end: Instant) -> Result<(), Closed> {
        let has_room = self.link.unsent.len() < OUTPUT_BYTES_MAX;
        let program = &self.program;
        let reads = |fd, data| Interest { fd, data, readable: true, writable: false };
        let mut interests = Vec::with_capacity(4);
        if !self.has_exited {
            interests.push(reads(program.ended.as_fd(), END));
        }
        if let Some(input) = program.input.as_ref().filter(|_| self.has_input) {
            let fd = input.as_fd();
            interests.push(Interest { fd, data: INPUT, readable: false, writable: true });
        }
        if let Some(output) = program.output.as_ref().filter(|_| has_room) {
            interests.push(reads(output.as_fd(), OUTPUT));
        }
        if let Some(errors) = &program.errors {
            interests.push(reads(errors.as_fd(), ERRORS));
        }
        for ready in self.link.wait(&interests, Some(end))? {
            match ready {
                OUTPUT => _ = self.read_output(),
                ERRORS => _ = self.read_errors(),
                END => {
                    self.has_exited = true;
                    self.program.kill();
                }
                // The input is passed on next.
                _ => {}
            }
        }
        Ok(())
    }

    /// Passes received bytes of the body on to the program, as far as it takes them. Bytes that it
    /// no longer reads are dropped.
    fn pass_input(&mut self) -> Result<(), Closed> {
        let received = &mut self.link.received;
        let mut consumed = 0;
        self.has_input = false;
        loop {
            let rest = &received[consumed..];
            match self.decoder.next_part(rest).map_err(|_| Closed)? {
                RequestPart::Framing(count) => consumed += count,
                RequestPart::Input(count) => {
                    let written = match &self.program.input {
                        Some(input) => millrace_sys::write_pipe(input.as_fd(), &rest[..count]),
                        None => Ok(count),
                    };
                    match written {
                        Ok(count) => {
                            self.decoder.skip(count);
                            consumed += count;
                        }
                        Err(Errno::AGAIN) => {
                            self.has_input = true;
                            break;
                        }
                        Err(_) => self.program.input = None,
                    }
                }
                RequestPart::Incomplete => break,
                // The next request follows the response, so other bytes are an abort.
                RequestPart::Ended if self.decoder.is_aborted() || !rest.is_empty() => {
                    return Err(Closed);
                }
                RequestPart::Ended => {
                    self.program.input = None;
                    break;
                }
            }
        }
        received.drain(..consumed);
        Ok(())
    }

    /// Reads what a program that has exited left in its pipes. Returns whether all of its output
    /// was read. Children that left the group may still write, so errors are read only as far as
    /// they are kept.
    fn read_rest(&mut self) -> bool {
        while self.errors_left > 0 && self.read_errors() {}
        while self.link.unsent.len() < OUTPUT_BYTES_MAX {
            if !self.read_output() {
                return true;
            }
        }
        false
    }

    /// Reads bytes of the output. Returns whether there were any.
    fn read_output(&mut self) -> bool {
        let Some(output) = &self.program.output else { return false };
        let mut bytes = [0; READ_BYTES_MAX];
        match millrace_sys::read_pipe(output.as_fd(), &mut bytes) {
            Err(Errno::AGAIN) => false,
            Ok(0) | Err(_) => {
                self.program.output = None;
                false
            }
            Ok(count) => {
                self.has_output = true;
                self.link.push(OutputStream::Output, &bytes[..count]);
                true
            }
        }
    }

    /// Reads bytes of standard error, and keeps the first ones. Returns whether there were any.
    fn read_errors(&mut self) -> bool {
        let Some(errors) = &self.program.errors else { return false };
        let mut bytes = [0; READ_BYTES_MAX];
        match millrace_sys::read_pipe(errors.as_fd(), &mut bytes) {
            Err(Errno::AGAIN) => false,
            Ok(0) | Err(_) => {
                self.program.errors = None;
                false
            }
            Ok(count) => {
                let kept = count.min(self.errors_left);
                self.errors_left -= kept;
                self.link.push(OutputStream::Errors, &bytes[..kept]);
                true
            }
        }
    }
}
