//! The stages of an exchange, the events that reach them, and what they return. Read this first,
//! then `worker/driver.rs`.
//!
//! | stage | file | takes | gives | may wait for |
//! | --- | --- | --- | --- | --- |
//! | accept | `stage/accept.rs` | a listener's connection | a `Conn` | room in the table |
//! | parse | `stage/parse.rs` | received bytes | an `Exchange`, or a precise refusal | more bytes |
//! | route | `stage/route.rs` | a request header | a plan: where the response comes from | a password |
//! | lookup | `stage/lookup.rs` | a plan | a stored response, or none | another's fetch, a disk |
//! | fetch | `stage/fetch.rs` | a plan | a response header, the source of its body | the origin |
//! | deliver | `stage/deliver.rs` | the response | bytes at the client | room to write |
//! | log | `stage/log.rs` | an ended exchange | a record; the connection goes on or ends | |
//!
//! Accept and parse work on a connection, before there is an exchange. A stage is a function
//! `on(core, key, event) -> NextStep`: it looks at its object and the worker's tables, queues
//! operations, and returns what comes next. It never calls another stage: only the driver does.
//!
//! There is one backward move, [`NextStep::Reenter`] of fetch: another origin connection, while nothing
//! of the request's body has been read for an origin and nothing of a response has reached the
//! client.

use millrace_dns::NameError;
use millrace_engine::Key;

use crate::exchange::reason::Reason;

/// Where an exchange is. The order is that of its life: the driver refuses to go back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) enum Stage {
    #[default]
    Route,
    Lookup,
    Fetch,
    Deliver,
    Log,
}

/// The object that an event is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EventTarget {
    /// A listener; the slot of the key is its number.
    Listener(Key),
    /// A client connection.
    Conn(Key),
    /// An exchange.
    Exchange(Key),
    /// A body on its way into the cache.
    Fill(Key),
}

/// What happened: a completion, a timer, a message or a wake-up. What it brought, where that is
/// more than a few bytes, is at its object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    /// The driver moved the object on to this stage, or the connection to its next request.
    Enter,
    /// The exchange has become the first of its connection.
    BecameFirst,
    /// A listener accepted a connection, or cannot: see [`Listeners::accepted`].
    ///
    /// [`Listeners::accepted`]: crate::conn::listeners::Listeners::accepted
    Accepted,
    /// Another worker handed over a connection that it accepted; it is at the same place.
    HandedOver,
    /// Bytes from the client are there, or may be.
    ClientReadable,
    /// The client ended its stream.
    ClientEnded,
    /// The client took what was sent.
    ClientSent,
    /// The client took so many bytes out of the download's pipe.
    ClientSpliced(u32),
    /// The client will take nothing more.
    ClientFailed,
    /// Bytes from the origin are there, or may be.
    OriginReadable,
    /// The origin ended its stream.
    OriginEnded,
    /// The connection to the origin broke.
    OriginBroke,
    /// The origin took what was sent.
    OriginSent,
    /// The origin took so many bytes out of the upload's pipe.
    OriginSpliced(u32),
    /// The origin will take nothing more.
    OriginFailed,
    /// An attempt to connect to the origin ended, or its timer is due: see [`Dial::news`].
    ///
    /// [`Dial::news`]: crate::origin::Dial::news
    DialProgress,
    /// The origin's name was looked up; the addresses are at the exchange's transaction.
    NameResolved(Result<(), NameError>),
    /// There may be room by now for what the exchange waited for.
    CapacityFreed,
    /// The verifier compared the password, and it is right; or the reason to refuse the request.
    Verified(Result<(), Reason>),
    /// What the exchange or the fill waits for in the cache may have come.
    Woken,
    /// The time for what the object waits for is over.
    TimedOut,
    /// The exchange has to end, for this reason.
    End(Reason),
}

// Events and steps travel in registers.
const _: () = assert!(size_of::<Event>() <= 8 && size_of::<NextStep>() <= 8);

/// What a stage returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NextStep {
    /// An operation is outstanding, or a transfer runs: an event takes it from here.
    Wait,
    /// On to a later stage.
    Advance(Stage),
    /// Enter the same stage again.
    Reenter,
    /// The exchange cannot go on: `exchange/end.rs` decides how it ends.
    End(Reason),
    /// A request began: the last exchange of the connection enters its first stage, or ends with a
    /// refusal. Afterwards the connection looks for a further request.
    BeginExchange(Option<Reason>),
    /// The exchange was recorded and removed; what becomes of its connection.
    Recorded(AfterExchange),
    /// A refresh ends; it has no client to deliver to.
    EndRefresh,
}

/// How a response ends that is not delivered whole: what its client sees of its connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Abort {
    /// The end in order (FIN), after the last byte that was received.
    Close,
    /// A reset, once the client's kernel has acknowledged what was sent.
    ResetWhenDelivered,
    /// A reset at once.
    Reset,
}

/// What becomes of a client connection when its first exchange has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AfterExchange {
    /// It goes on to the next request.
    Continue,
    /// It closes once the client has read the response, which what the client still sends must not
    /// turn into a reset (RFC 9112 section 9.6).
    Linger,
    /// It closes.
    Close,
    /// It closes so that the client sees that it broke.
    Reset,
    /// It is reset once the client's kernel has acknowledged what was sent.
    ResetWhenDelivered,
}
