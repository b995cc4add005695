//! The one table of limits and timeouts. Every row is armed by default and safe to expose to the
//! internet; the command line, the file format, `--help`, the reference page and the error for a
//! bad value all come from it.

/// One row of the table, as texts and numbers.
#[derive(Clone, Copy, Debug)]
pub struct LimitRow {
    /// Its name in `[limits]` and for `--limit`.
    pub name: &'static str,
    /// Least and greatest value allowed.
    pub bounds: (u64, u64),
    /// The value where none is given.
    pub default: u64,
    /// What is counted.
    pub unit: &'static str,
    /// What is limited, and what happens at the limit.
    pub text: &'static str,
}

macro_rules! limits {
    ($(
        $(#[doc = $doc:literal])+
        $name:ident: $default:literal in $least:literal ..= $most:literal $unit:literal;
    )*) => {
        /// The values in force; one field a row.
        #[derive(Clone, PartialEq, Eq, Debug)]
        pub struct Limits {
            $($(#[doc = $doc])+ pub $name: u64,)*
        }

        impl Limits {
            /// The rows, in the order of the reference page.
            pub const TABLE: &'static [LimitRow] = &[$(LimitRow {
                name: stringify!($name),
                bounds: ($least, $most),
                default: $default,
                unit: $unit,
                text: concat!($($doc),+),
            }),*];

            /// Sets one row by name, if there is one; its bounds are the caller's to check.
            pub fn set(&mut self, name: &str, value: u64) -> bool {
                match name {
                    $(stringify!($name) => self.$name = value,)*
                    _ => return false,
                }
                true
            }

            /// The value of one row by name, if there is one.
            pub fn get(&self, name: &str) -> Option<u64> {
                match name {
                    $(stringify!($name) => Some(self.$name),)*
                    _ => None,
                }
            }
        }

        impl Default for Limits {
            fn default() -> Self {
                Self { $($name: $default,)* }
            }
        }

        $(const _: () = {
            let (least, default, most): (u64, u64, u64) = ($least, $default, $most);
            assert!(least <= default && default <= most);
        };)*
    };
}

limits! {
    /// Client connections of the whole process. At it, those that have stood still longest are
    /// closed; while none has, accepting pauses.
    connections: 65536 in 1..=1000000 "connections";
    /// Client connections from one client. At it, a new one is closed at once.
    connections_per_client: 16384 in 1..=1000000 "connections";
    /// IPv6 addresses that begin with the same so many bits are one client, for
    /// `connections_per_client` and for passwords that wait to be compared. An IPv4 address is one
    /// client.
    client_ipv6_prefix: 64 in 1..=128 "bits";
    /// A request head, its line included. Above it: 431, connection closed.
    request_head_bytes: 32768 in 1024..=65536 "bytes";
    /// An answer head, its status line included. Above it: 502.
    response_head_bytes: 65536 in 1024..=65536 "bytes";
    /// Fields of a request head. Above it: 431.
    fields: 200 in 8..=4096 "fields";
    /// Fields of an answer head; their memory is charged to the budget of connections. Above it:
    /// 502.
    response_fields: 1000 in 8..=4096 "fields";
    /// A request target. Above it: 414, connection closed.
    target_bytes: 16384 in 256..=65536 "bytes";
    /// Requests of one connection under way at once, where they are pipelined and safe. Those after
    /// them stay unread.
    pipelined: 8 in 1..=256 "requests";
    /// From a request's first byte (or the connection's beginning) to the end of its head. At it:
    /// 408, connection closed; without a word if no byte came.
    head_ms: 30000 in 100..=3600000 "milliseconds";
    /// Between two requests of one client connection. At it, the connection is closed.
    idle_ms: 75000 in 100..=86400000 "milliseconds";
    /// Without a byte of a request body. At it: 408, connections closed.
    body_ms: 30000 in 100..=3600000 "milliseconds";
    /// Without a byte taken by a client that an answer waits for. At it, the connection is reset.
    send_ms: 60000 in 100..=3600000 "milliseconds";
    /// Slowest that a client may send a body or take an answer, averaged over each `body_ms` or
    /// `send_ms` in which it was waited for. Below it: as if nothing had moved.
    rate_bytes_per_second: 128 in 0..=1000000000 "bytes a second";
    /// Opening a connection to an origin, over all its addresses. At it: the next origin, else 504.
    connect_ms: 5000 in 10..=3600000 "milliseconds";
    /// From the end of a request to the first byte of its answer. At it: 504.
    first_byte_ms: 60000 in 10..=86400000 "milliseconds";
    /// Without a byte of an answer that has begun. At it, the client's connection is reset.
    response_ms: 60000 in 10..=86400000 "milliseconds";
    /// Connections to one origin, or to one target of a forward proxy, kept ones included; divided
    /// between the workers. At it: the next origin with room, else the request waits in line. 0: no
    /// limit for origins, and a quarter of the descriptors for a target.
    origin_connections: 0 in 0..=1000000 "connections";
    /// Requests that wait in the line of one origin; divided between the workers. Above it: 503.
    origin_queue: 1024 in 0..=1000000 "requests";
    /// Waiting in the line of an origin. At it: 503.
    queue_ms: 5000 in 10..=3600000 "milliseconds";
    /// An origin connection kept without a request. At it, it is closed.
    origin_idle_ms: 60000 in 10..=86400000 "milliseconds";
    /// Idle connections that a worker keeps for one origin. Above it, the oldest is closed.
    origin_idle_connections: 512 in 0..=65536 "connections";
    /// Idle origin connections that a worker keeps in all. Above it, the oldest is closed.
    origin_idle_connections_all: 4096 in 0..=1000000 "connections";
    /// A tunnel in which no byte moves in either direction. At it, both sides are closed.
    tunnel_idle_ms: 900000 in 100..=86400000 "milliseconds";
    /// Reading away what a refused client still sends, so that it can read the answer. At it, the
    /// connection is closed.
    linger_ms: 5000 in 0..=600000 "milliseconds";
    /// From SIGTERM to the end of the process. At it, what is left is cut off.
    drain_ms: 30000 in 0..=86400000 "milliseconds";
    /// A name looked up, over all name servers. At it: 504.
    name_ms: 5000 in 100..=600000 "milliseconds";
    /// Names that a worker looks up at a time; each takes two descriptors. Above it: requests wait
    /// for room, else 503.
    name_lookups: 256 in 1..=4096 "lookups";
    /// Names that a worker remembers. Above it, the one that ends first is forgotten.
    names: 4096 in 16..=1000000 "names";
    /// Panics of worker threads in a minute that are survived: the worker is started anew, and its
    /// connections are reset. Above it, the process ends with status 1.
    worker_restarts: 5 in 0..=1000000 "panics";
    /// A password compared by the verifier. At it: 503.
    auth_ms: 5000 in 100..=600000 "milliseconds";
    /// How long a worker takes credentials for right that were compared. After it, they are
    /// compared again. A changed file of users is heeded at once.
    auth_cache_ms: 600000 in 0..=86400000 "milliseconds";
    /// Credentials that a worker takes for right. Above it, the oldest are compared again.
    auth_cache_entries: 4096 in 0..=1000000 "credentials";
    /// Further tries of a request that may be repeated (RFC 9110 section 9.2.2). After them: 502,
    /// 503 or 504.
    retries: 2 in 0..=16 "tries";
    /// Further tries at other origins, of the requests that a worker had for a route within ten
    /// seconds. Above it, a failure goes to the client.
    retry_percent: 20 in 0..=1000 "percent";
    /// Further tries that are made whatever `retry_percent` says, divided between the workers.
    retries_per_second: 10 in 0..=1000000 "tries a second";
    /// Failures in a row (no connection, no answer, a malformed one) of one origin of a booster. At
    /// it, the origin is asked no more for `eject_ms`, while its route has others. 0: never.
    eject_failures: 5 in 0..=1000000 "failures";
    /// From an origin's ejection until one request is sent to probe it. If that fails, the origin is
    /// ejected for twice as long as before.
    eject_ms: 10000 in 10..=86400000 "milliseconds";
    /// The longest that repeated failing makes of `eject_ms`.
    eject_ms_max: 300000 in 10..=86400000 "milliseconds";
    /// Between two health checks of one origin.
    check_interval_ms: 5000 in 100..=86400000 "milliseconds";
    /// A health check, from connecting to the end of the answer's head. At it, the check failed.
    check_timeout_ms: 2000 in 10..=600000 "milliseconds";
    /// Health checks in a row that fail. At it, the origin is asked no more while its route has
    /// others.
    check_fails: 3 in 1..=1000 "checks";
    /// Health checks in a row that pass, of an origin that failed. At it, the origin is asked again.
    check_passes: 2 in 1..=1000 "checks";
    /// The body of a stored answer, and never more than an eighth of `cache-memory`. A longer one
    /// is passed on and not stored.
    object_bytes: 1073741824 in 1..=1099511627776 "bytes";
    /// Stored answers to one URL, for requests that differ in the fields of their Vary. Above it,
    /// the oldest goes.
    variants: 64 in 1..=65536 "answers";
    /// How long it is remembered that the answers to a URL are not stored, so that nobody waits
    /// for them. 0: not at all.
    uncacheable_ms: 120000 in 0..=86400000 "milliseconds";
    /// Waiting for what another client's request brings. At it, the request goes to the origin
    /// itself.
    collapse_wait_ms: 5000 in 0..=3600000 "milliseconds";
    /// Of an answer that is not stored but has several readers: how far it is received ahead of
    /// the fastest one. At it, nothing more is read of the origin.
    fill_ahead_bytes: 1048576 in 65536..=1073741824 "bytes";
}
