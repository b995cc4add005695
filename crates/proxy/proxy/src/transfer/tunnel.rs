//! Tunnels: CONNECT, and protocols that Upgrade switched to. A tunnel has two transfers without
//! framing. The end of each source's stream is passed on, so a half-closed tunnel continues in the
//! other direction. The tunnel ends when both directions have ended, or when either side breaks.

use millrace_engine::{Engine, Key};
use millrace_http1::Framing;

use crate::core::Core;
use crate::transfer::{TransferProgress, download, upload};

/// Starts both directions with the bytes that were already received on either side. The header in
/// `core.out` is sent to the client first.
pub(crate) fn begin<E: Engine>(core: &mut Core<E>, key: Key) -> TransferProgress {
    let now = core.engine.now();
    core.counters.tunnels.add(1);
    let exchange = core.exchange(key);
    exchange.is_tunnel = true;
    exchange.is_persistent = false;
    exchange.upload.start(Framing::UntilClose, false, now);
    exchange.download.start(Framing::UntilClose, false, now);
    let begun = download::pump(core, key, true);
    assert_eq!(
        begun,
        TransferProgress::Waiting,
        "a tunnel begins with a header, and has no framing to break"
    );
    upload::pump(core, key, false)
}
