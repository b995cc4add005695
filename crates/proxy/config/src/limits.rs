//! The one table of limits and timeouts. Every row is active by default, with a value that is safe
//! on the internet. The command line, the file format, the reference pages and the errors for bad
//! values all come from the table.

/// A limit, as the reference pages describe it.
#[derive(Clone, Copy, Debug)]
pub struct LimitRow {
    /// The name in `[limits]` and for `--limit`.
    pub name: &'static str,
    /// The least and the greatest valid value.
    pub bounds: (u64, u64),
    /// The default.
    pub default: u64,
    /// The unit of the value.
    pub unit: &'static str,
    /// The quantity that is limited, and the effect when the limit is reached.
    pub text: &'static str,
}

macro_rules! limits {
    ($(
        $(#[doc = $doc:literal])+
        $name:ident: $default:literal in $least:literal ..= $most:literal $unit:literal;
    )*) => {
        /// The values of all limits; one field per row.
        #[derive(Clone, PartialEq, Eq, Debug)]
        pub struct Limits {
            $($(#[doc = $doc])+ pub $name: u64,)*
        }

        impl Limits {
            /// The rows, in the order of the reference pages.
            pub const TABLE: &'static [LimitRow] = &[$(LimitRow {
                name: stringify!($name),
                bounds: ($least, $most),
                default: $default,
                unit: $unit,
                text: concat!($($doc),+),
            }),*];

            /// Sets the limit of a name, without a check of its bounds. Returns whether it exists.
            pub fn set(&mut self, name: &str, value: u64) -> bool {
                match name {
                    $(stringify!($name) => self.$name = value,)*
                    _ => return false,
                }
                true
            }

            /// Returns the value of a limit; `None` if there is no limit of that name.
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
    /// Client connections of the process. At the limit, the connections that have made no progress
    /// for longest are closed; if all make progress, accepting pauses.
    connections: 65536 in 1..=1000000 "connections";
    /// Connections from one client. A further connection is closed at once.
    connections_per_client: 16384 in 1..=1000000 "connections";
    /// Length of the IPv6 prefix that identifies a client. `connections_per_client` and the queue
    /// of passwords to verify count per client. Each IPv4 address is a client.
    client_ipv6_prefix: 64 in 1..=128 "bits";
    /// Size of a request line and header section. A larger one gets a 431 response, and the
    /// connection is closed.
    request_head_bytes: 32768 in 1024..=65536 "bytes";
    /// Size of an origin's status line and header section. A larger one becomes a 502 response.
    response_head_bytes: 65536 in 1024..=65536 "bytes";
    /// Header fields of a request. A request with more gets a 431 response.
    fields: 200 in 8..=4096 "fields";
    /// Header fields of a response; their memory counts towards the budget of connections. A
    /// response with more becomes a 502 response.
    response_fields: 1000 in 8..=4096 "fields";
    /// Size of a request target. A longer one gets a 414 response, and the connection is closed.
    target_bytes: 16384 in 256..=65536 "bytes";
    /// Pipelined requests of one connection that are processed at the same time, if their methods
    /// are safe. Further requests stay unread.
    pipelined: 8 in 1..=256 "requests";
    /// Time from the first byte of a request, or from the start of a connection, to the end of the
    /// header section. After it, the client gets a 408 response, or none if no byte arrived, and
    /// the connection is closed.
    head_ms: 30000 in 100..=3600000 "milliseconds";
    /// Time for a TLS handshake. After it, the connection is closed.
    handshake_ms: 10000 in 100..=600000 "milliseconds";
    /// Client connections of the process whose TLS handshake is in progress; divided among the
    /// workers. A further connection to a `tls://` address is closed at once.
    handshakes: 16384 in 1..=1000000 "connections";
    /// Interval at which the files of certificates and keys are checked. If one has changed, the
    /// configuration is reloaded.
    certificate_check_ms: 60000 in 100..=86400000 "milliseconds";
    /// Wait after the first failed order of a certificate by ACME. It doubles with each further
    /// failure, up to a day, and a random part of up to a quarter is added.
    acme_retry_ms: 60000 in 100..=86400000 "milliseconds";
    /// Time between two requests of a client connection. After it, the connection is closed.
    idle_ms: 75000 in 100..=86400000 "milliseconds";
    /// Time without a byte of a request body. After it, the client gets a 408 response, and the
    /// connections are closed.
    body_ms: 30000 in 100..=3600000 "milliseconds";
    /// Time in which a client accepts no byte of its response. After it, the connection is reset,
    /// or closed if only the announced end of a TLS stream is unsent.
    send_ms: 60000 in 100..=3600000 "milliseconds";
    /// Least rate at which a client has to send a body or receive a response, averaged over each
    /// period of `body_ms` or `send_ms` in which millrace waited for it. A slower client is treated
    /// as one that made no progress.
    rate_bytes_per_second: 128 in 0..=1000000000 "bytes a second";
    /// Time to connect to an origin, over all its addresses. After it, the next origin is tried;
    /// without another one the client gets a 504 response.
    connect_ms: 5000 in 10..=3600000 "milliseconds";
    /// Time from the end of a request to the first byte of the response. After it, the client gets
    /// a 504 response.
    first_byte_ms: 60000 in 10..=86400000 "milliseconds";
    /// Time without a byte of a response that has begun. After it, the client's connection is
    /// reset.
    response_ms: 60000 in 10..=86400000 "milliseconds";
    /// Connections to one origin, or to one target of a forward proxy, including idle ones; divided
    /// among the workers. At the limit, another origin is used; without one that has capacity, the
    /// request waits in the origin queue. 0: no limit for an origin, a quarter of the file
    /// descriptors for a target.
    origin_connections: 0 in 0..=1000000 "connections";
    /// Requests in the queue of one origin; divided among the workers. A further request gets a 503
    /// response.
    origin_queue: 1024 in 0..=1000000 "requests";
    /// Time that a request waits in an origin queue. After it, the client gets a 503 response.
    queue_ms: 5000 in 10..=3600000 "milliseconds";
    /// Time that a request waits behind others on an origin connection, with `origin-pipelining`.
    /// After it, the request is sent on another connection.
    pipeline_wait_ms: 1000 in 10..=3600000 "milliseconds";
    /// Time that an origin connection stays open without a request. After it, the connection is
    /// closed.
    origin_idle_ms: 60000 in 10..=86400000 "milliseconds";
    /// Idle connections that a worker keeps to one origin. With more, the oldest is closed.
    origin_idle_connections: 512 in 0..=65536 "connections";
    /// Idle connections that a worker keeps to all origins. With more, the oldest is closed.
    origin_idle_connections_all: 4096 in 0..=1000000 "connections";
    /// Time without a byte in either direction of a tunnel. After it, both connections are closed.
    tunnel_idle_ms: 900000 in 100..=86400000 "milliseconds";
    /// Time in which millrace reads and discards what a refused client still sends, so that the
    /// client can read the response. After it, the connection is closed.
    linger_ms: 5000 in 0..=600000 "milliseconds";
    /// Time from SIGTERM to the end of the process. After it, the remaining connections are cut
    /// off.
    drain_ms: 30000 in 0..=86400000 "milliseconds";
    /// Time to look up a host name, over all name servers. After it, the client gets a 504
    /// response.
    name_ms: 5000 in 100..=600000 "milliseconds";
    /// Host names that a worker looks up at the same time; each lookup takes two file descriptors.
    /// Further requests wait, and get a 503 response if that takes too long.
    name_lookups: 256 in 1..=4096 "lookups";
    /// Host names that a worker caches. With more, the name that expires first is removed.
    names: 4096 in 16..=1000000 "names";
    /// Panics of worker threads in a minute that the process survives: the worker is restarted, and
    /// its connections are reset. With more, the process exits with status 1.
    worker_restarts: 5 in 0..=1000000 "panics";
    /// Time to verify a password. After it, the client gets a 503 response.
    auth_ms: 5000 in 100..=600000 "milliseconds";
    /// Time for which a worker accepts verified credentials again. After it, they are verified
    /// anew. A changed file of users applies at once.
    auth_cache_ms: 600000 in 0..=86400000 "milliseconds";
    /// Verified credentials that a worker caches. With more, the oldest are removed and verified
    /// anew.
    auth_cache_entries: 4096 in 0..=1000000 "credentials";
    /// Retries of a request that may be repeated (RFC 9110 section 9.2.2). After them, the client
    /// gets a 502, 503 or 504 response.
    retries: 2 in 0..=16 "tries";
    /// Retries at other origins, in percent of the requests that a worker had for a route within
    /// ten seconds. With more, the client gets the failure.
    retry_percent: 20 in 0..=1000 "percent";
    /// Retries that are always possible, in addition to `retry_percent`; divided among the workers.
    retries_per_second: 10 in 0..=1000000 "tries a second";
    /// Consecutive failures of an origin of a reverse proxy (no connection, no response, a
    /// malformed response). At the limit, the origin is not used for `eject_ms` if its route has
    /// others. 0: never.
    eject_failures: 5 in 0..=1000000 "failures";
    /// Time from the ejection of an origin to the request that probes it. Passed health checks do
    /// not shorten it. Each failed probe doubles the time.
    eject_ms: 10000 in 10..=86400000 "milliseconds";
    /// Longest time to which failed probes extend `eject_ms`.
    eject_ms_max: 300000 in 10..=86400000 "milliseconds";
    /// Time between two health checks of an origin.
    check_interval_ms: 5000 in 100..=86400000 "milliseconds";
    /// Time of a health check, from connecting to the end of the response's header section. After
    /// it, the check has failed.
    check_timeout_ms: 2000 in 10..=600000 "milliseconds";
    /// Consecutive failed health checks after which an origin is not used if its route has others.
    check_fails: 3 in 1..=1000 "checks";
    /// Consecutive passed health checks after which an origin that failed them is used again. If
    /// requests of clients failed too and ejected the origin, it also waits for `eject_ms`.
    check_passes: 2 in 1..=1000 "checks";
    /// Size of the body of a stored response; also bounded by an eighth of `cache-memory`. A larger
    /// response is passed on and not stored.
    object_bytes: 1073741824 in 1..=1099511627776 "bytes";
    /// Stored responses of one URL, which differ in the request header fields that their Vary
    /// names. With more, the oldest is removed.
    variants: 64 in 1..=65536 "responses";
    /// Time for which the cache remembers that responses of a URL are not stored, so that requests
    /// do not wait for them. 0: not at all.
    uncacheable_ms: 120000 in 0..=86400000 "milliseconds";
    /// Time that a request waits for the response to another client's request. After it, the
    /// request itself goes to the origin.
    collapse_wait_ms: 5000 in 0..=3600000 "milliseconds";
    /// Bytes that a fetch may be ahead of its fastest reader, if several clients read the response
    /// and it is not stored. At the limit, reading from the origin pauses.
    fill_ahead_bytes: 1048576 in 65536..=1073741824 "bytes";
    /// Size of a file of a served folder that is kept in the memory of the cache. A longer file is
    /// sent from the file itself.
    file_memory_bytes: 4194304 in 0..=1073741824 "bytes";
    /// Files of served folders that the process keeps open; divided among the workers. With more,
    /// those that were not used for longest are closed, and opened again for the next request.
    open_files: 2048 in 64..=1000000 "files";
    /// Size of a request body for a program that is received into a file in the folder of a `disk`
    /// before the program gets it, if it is longer than `upload-buffer`. A longer body is sent
    /// while it arrives; if it is chunked, the client gets a 413 response.
    upload_file_bytes: 1073741824 in 0..=1099511627776 "bytes";
    /// Size of all such files of the process together, besides the size of the disk. With more, the
    /// client gets a 507 response.
    upload_disk_bytes: 8589934592 in 0..=17592186044416 "bytes";
    /// CGI programs that run at the same time. Further requests wait in the origin queue, as for
    /// `origin_connections`, or get a 503 response.
    cgi_programs: 64 in 1..=4096 "programs";
    /// Longest run of a CGI program. After it, the program is killed with all its processes; the
    /// client gets a 504 response, or its connection is reset if the response had begun.
    cgi_ms: 600000 in 10..=86400000 "milliseconds";
    /// Address space of each process of a CGI program. A program that needs more gets no memory. 0:
    /// no limit.
    cgi_memory_bytes: 4294967296 in 0..=1099511627776 "bytes";
    /// Processes and threads of the user of CGI programs, if that is another user than the one that
    /// started millrace. With more, programs cannot be started and cannot fork. 0: no limit.
    cgi_processes: 512 in 0..=1000000 "processes";
    /// Memory in which a program (`program`) has its responses, for each worker. A response for
    /// which clients leave no room waits, and with it those that the program sends after it.
    program_memory_bytes: 268435456 in 67108864..=1099511627776 "bytes";
}
