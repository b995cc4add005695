//! Sends of parts, and then of shared bytes or bytes of a file. These are read only when they are
//! sent, as a kernel reads pages that it refers to.

use millrace_engine::{Error, FileRead, SendSource};

use crate::descriptor::{AfterSend, OperationKind};
use crate::kernel::Kernel;

/// The most bytes that one call sends from a file, as sendfile(2) moves them through a pipe.
const FILE_BYTES_MAX: usize = 64 * 1024;

impl Kernel {
    /// Begins to send `parts`, and then the bytes of `source`.
    ///
    /// # Panics
    /// As [`Kernel::begin_send`].
    pub(crate) fn begin_send_source(
        &mut self,
        engine: usize,
        number: u32,
        parts: &[&[u8]],
        source: SendSource<'_>,
    ) -> OperationKind {
        let (rest, mut failed) = self.begin_send(engine, number, parts);
        let mut sent = 0;
        if rest.is_none() && failed.is_none() {
            match self.try_send_source(number, source, &mut sent) {
                Some(Ok(())) => {
                    return OperationKind::Send { rest, failed, then: AfterSend::Nothing };
                }
                Some(Err(error)) => failed = Some(error),
                None => {}
            }
        }
        let then = AfterSend::Source { source: source.hold(), sent };
        OperationKind::Send { rest, failed, then }
    }

    /// Continues to send the bytes of a source after the first `sent` ones. Returns `None` while
    /// some are left and there is no error.
    pub(crate) fn try_send_source(
        &mut self,
        number: u32,
        source: SendSource<'_>,
        sent: &mut usize,
    ) -> Option<Result<(), Error>> {
        let left = source.byte_count() - *sent;
        let written = match source {
            SendSource::Shared(shared) => self.write(number, &shared.bytes()[*sent..]),
            SendSource::File { file, at, .. } => {
                read_file(&**file, at + *sent as u64, left.min(FILE_BYTES_MAX))
                    .and_then(|bytes| self.write(number, &bytes))
            }
        };
        match written {
            Ok(count) => *sent += count,
            Err(error) => return Some(Err(error)),
        }
        (*sent == source.byte_count()).then_some(Ok(()))
    }
}

/// Reads at least one byte, and up to `max` bytes, of a file.
fn read_file(file: &dyn FileRead, at: u64, max: usize) -> Result<Vec<u8>, Error> {
    let mut bytes = vec![0; max];
    match file.read_at(at, &mut bytes, true) {
        Ok(0) => Err(Error::FileEnded),
        Ok(count) => {
            bytes.truncate(count);
            Ok(bytes)
        }
        Err(errno) => Err(Error::FileUnreadable(errno.raw_os_error())),
    }
}
