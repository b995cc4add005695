//! Sends of bytes that are not copied when they are queued.

use millrace_engine::{Error, SharedBytes};

use crate::descriptor::{AfterSend, OperationKind};
use crate::kernel::Kernel;

impl Kernel {
    /// Begins to send `parts`, and then the shared bytes.
    ///
    /// # Panics
    /// As [`Kernel::begin_send`].
    pub(crate) fn begin_send_shared(
        &mut self,
        engine: usize,
        number: u32,
        parts: &[&[u8]],
        shared: &dyn SharedBytes,
    ) -> OperationKind {
        let (rest, mut failed) = self.begin_send(engine, number, parts);
        let mut sent = 0;
        if rest.is_none() && failed.is_none() {
            match self.try_send_shared(number, shared, &mut sent) {
                Some(Ok(())) => {
                    return OperationKind::Send { rest, failed, then: AfterSend::Nothing };
                }
                Some(Err(error)) => failed = Some(error),
                None => {}
            }
        }
        OperationKind::Send {
            rest,
            failed,
            then: AfterSend::SharedBytes { shared: shared.clone_box(), sent },
        }
    }

    /// Continues to send shared bytes from the offset `sent` on. Returns `None` while some are left
    /// and there is no error.
    pub(crate) fn try_send_shared(
        &mut self,
        number: u32,
        shared: &dyn SharedBytes,
        sent: &mut usize,
    ) -> Option<Result<(), Error>> {
        match self.write(number, &shared.bytes()[*sent..]) {
            Ok(count) => *sent += count,
            Err(error) => return Some(Err(error)),
        }
        (*sent == shared.bytes().len()).then_some(Ok(()))
    }
}
