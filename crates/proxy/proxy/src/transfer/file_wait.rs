//! The wait of a transfer for bytes of a file that a thread reads from a disk.

use millrace_engine::{Engine, Key, TokenKind};

use crate::core::Core;
use crate::files::FileBody;
use crate::transfer::TransferProgress;

/// Has a thread read the bytes of a body that its transfer waits for. If too much work waits for
/// the threads, the next maintenance tries again. That does not change the deadline of the wait.
pub(crate) fn begin<E: Engine>(core: &mut Core<E>, key: Key, body: FileBody) -> TransferProgress {
    let waiter = core.waiter(key, TokenKind::Exchange);
    let exchange = core.exchanges.get_mut(key).expect("the caller's exchange is in the table");
    if !exchange.file_mut().begin_read(body, &core.shared.files, waiter) {
        core.overload.refused_reads.push(key);
    }
    TransferProgress::Waiting
}

/// Tries again for the exchanges whose reads were refused, the oldest first.
pub(crate) fn retry<E: Engine>(core: &mut Core<E>) {
    for key in std::mem::take(&mut core.overload.refused_reads) {
        // It may have ended.
        let file = core.exchanges.get(key).and_then(|exchange| exchange.file.as_ref());
        if let Some(body) = file.and_then(|file| file.refused_read()) {
            begin(core, key, body);
        }
    }
}
