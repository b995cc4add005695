//! The stages of an exchange, the events that they handle, and the steps that they return. Read
//! this first, then `worker/driver.rs`.
//!
//! | stage | file | input | result | may wait for |
//! | --- | --- | --- | --- | --- |
//! | accept | `stage/accept.rs` | a listener's connection | a `Conn` | a PROXY header |
//! | parse | `stage/parse.rs` | received bytes | an `Exchange`, or a refusal | more bytes |
//! | route | `stage/route.rs` | a request header | a plan for the response | a password check |
//! | file | `stage/file.rs` | a plan with a folder | a file, a refusal, or none | a disk |
//! | lookup | `stage/lookup.rs` | a plan | a stored response, or none | another fetch, a disk |
//! | receive | `stage/receive.rs` | a request for a program | its body in memory | the body |
//! | fetch | `stage/fetch.rs` | a plan | a response header, the source of its body | the origin |
//! | deliver | `stage/deliver.rs` | the response | bytes sent to the client | space in the socket |
//! | log | `stage/log.rs` | an ended exchange | a record; the connection continues or ends | |
//!
//! Accept and parse work on a connection, before there is an exchange. A stage is a function
//! `on(core, key, event) -> NextStep`. It examines its object and the worker's tables, queues
//! operations, and returns the next step. It never calls another stage: only the driver does.
//!
//! There are two backward moves, both before a byte of a response has reached the client:
//!
//! * [`NextStep::Reenter`] of fetch: another origin connection. It is possible while no byte of the
//!   request body was read for an origin.
//! * [`NextStep::Return`] of fetch: a program has redirected the request to another path, for which
//!   all stages decide anew (`local_redirect.rs`), or the response names a file (`sendfile.rs`).

use millrace_dns::NameError;
use millrace_engine::Key;

use crate::exchange::reason::Reason;

/// The stage of an exchange. Stages are ordered by time, and the driver refuses to go back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) enum Stage {
    #[default]
    Route,
    File,
    Lookup,
    Receive,
    Fetch,
    Deliver,
    Log,
}

/// The object that an event is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EventTarget {
    /// A listener. The slot of the key is the listener's number.
    Listener(Key),
    /// A client connection.
    Conn(Key),
    /// An exchange.
    Exchange(Key),
    /// A fill: a body that is received into the cache.
    Fill(Key),
}

/// A completion, a timer, a message or a wake-up. Data that is larger than a few bytes is stored in
/// the target object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    /// The driver moved the target on to this stage, or the connection to its next request.
    Enter,
    /// The exchange has become the first of its connection.
    BecameFirst,
    /// A listener accepted a connection, or failed to: see [`Listeners::accepted`].
    ///
    /// [`Listeners::accepted`]: crate::conn::listeners::Listeners::accepted
    Accepted,
    /// Another worker handed over a connection that it accepted. The connection is in
    /// [`Listeners::accepted`].
    ///
    /// [`Listeners::accepted`]: crate::conn::listeners::Listeners::accepted
    HandedOver,
    /// Bytes from the client have arrived, or may have.
    ClientReadable,
    /// The client ended its stream.
    ClientEnded,
    /// The client's socket took everything that was sent.
    ClientSent,
    /// The client's socket took this many bytes from the download's pipe.
    ClientSpliced(u32),
    /// A send to the client failed.
    ClientFailed,
    /// Bytes from the origin have arrived, or may have.
    OriginReadable,
    /// The origin ended its stream.
    OriginEnded,
    /// The origin connection broke.
    OriginBroke,
    /// The origin's socket took everything that was sent.
    OriginSent,
    /// The origin's socket took this many bytes from the upload's pipe.
    OriginSpliced(u32),
    /// A send to the origin failed.
    OriginFailed,
    /// An attempt to connect to the origin ended, or its timer expired: see
    /// [`Dial::pending_event`].
    ///
    /// [`Dial::pending_event`]: crate::origin::Dial::pending_event
    DialProgress,
    /// The lookup of the origin's name ended. The addresses are in the exchange's transaction.
    NameResolved(Result<(), NameError>),
    /// There may now be capacity for the exchange or the fill.
    CapacityFreed,
    /// The verifier found the password to be right, or there is a reason to refuse the request.
    Verified(Result<(), Reason>),
    /// The cache woke the exchange or the fill: it may continue now.
    Woken,
    /// The deadline of the present wait has passed.
    TimedOut,
    /// The exchange has to end for this reason.
    End(Reason),
}

// Events and steps are passed in registers.
const _: () = assert!(size_of::<Event>() <= 8 && size_of::<NextStep>() <= 8);

/// The step that a stage returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NextStep {
    /// Wait for the event of an outstanding operation or transfer.
    Wait,
    /// Enter a later stage.
    Advance(Stage),
    /// Enter the same stage again.
    Reenter,
    /// Enter an earlier stage again: the response names another place of this server.
    Return(Stage),
    /// End the exchange; `exchange/end.rs` decides how.
    End(Reason),
    /// A request began. Drive the newest exchange of the connection from its first stage, or end it
    /// with a refusal. After that, the connection looks for a further request.
    BeginExchange(Option<Reason>),
    /// The exchange was recorded and removed. Its connection continues or ends like this.
    Recorded(AfterExchange),
    /// End a refresh, which has no client to deliver to.
    EndRefresh,
}

/// How a client connection ends after a response that was not delivered whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Abort {
    /// It is closed in order (FIN) after the last byte that was received.
    Close,
    /// It is reset once the client's kernel has acknowledged everything that was sent.
    ResetWhenDelivered,
    /// It is reset at once.
    Reset,
}

/// How a client connection continues or ends after its first exchange.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AfterExchange {
    /// It serves the next request.
    Continue,
    /// It closes once the client has read the response. Until then, received bytes are discarded,
    /// so that they do not cause a reset (RFC 9112 section 9.6).
    Linger,
    /// It closes in order.
    Close,
    /// It is reset.
    Reset,
    /// It is reset once the client's kernel has acknowledged everything that was sent.
    ResetWhenDelivered,
}
