//! The one table of options. The command line, the file format, `--help`, the reference pages and
//! the error for a bad value all come from a row; nothing about an option is said anywhere else.
//! Limits have a table of their own, [`Limits::TABLE`](crate::limits::Limits::TABLE), reached
//! through the row `limit`.

pub use super::value_type::ValueType;
use Scope::{Boost, Cache, Forward, Process, Route, Service, Start};

/// One option.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OptionRow {
    /// Its name on the command line, without the dashes; `None`: only in files.
    pub flag: Option<&'static str>,
    /// Its key in files.
    pub key: &'static str,
    /// Where it belongs.
    pub scope: Scope,
    /// Its type and bounds.
    pub kind: ValueType,
    /// The value where none is given, as written, or in words between parentheses.
    pub default: &'static str,
    /// How many values it takes; above 1 the option is repeatable, in files a list.
    pub values_max: usize,
    /// What it is for.
    pub text: &'static str,
}

/// What an option is about; decides the commands and the tables of a file that take it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// The whole process: every command that runs or reads a configuration; a file's top.
    Process,
    /// How the process starts: the commands that serve; in no file.
    Start,
    /// One service of either kind: `forward` and `boost`; `[[forward]]` and `[[boost]]`.
    Service,
    /// One forward proxy: `forward`; `[[forward]]`.
    Forward,
    /// One booster: `boost`; `[[boost]]`.
    Boost,
    /// One route of a booster: `boost`; `[[boost.route]]`.
    Route,
    /// What is kept of the answers of a forward proxy or of a route: `forward` and `boost`;
    /// `[[forward]]`, `[[boost.route]]`, and `[[boost]]` for those of its routes that do not say.
    Cache,
}

/// The commands that take options from the table.
pub const COMMANDS: &[(&str, &str)] = &[
    ("forward", "Run a forward proxy for browsers, package managers and programs; CONNECT too"),
    ("boost", "Run a booster (reverse proxy) in front of web servers"),
    ("run", "Run what a file describes"),
    ("check", "Check a file and print the whole configuration that it means"),
    ("doctor", "Say what this machine offers and what millrace would do on it"),
    ("demo", "Run a booster before a small built-in site, and say what happens as it happens"),
    ("cache", "Ask a running process what its cache holds, or purge it"),
];

impl OptionRow {
    /// Whether a command takes the option.
    pub fn is_of_command(&self, command: &str) -> bool {
        self.flag.is_some()
            && match self.scope {
                Scope::Process => !matches!(command, "demo" | "cache"),
                Scope::Start => matches!(command, "forward" | "boost" | "run"),
                Scope::Service | Scope::Cache => matches!(command, "forward" | "boost"),
                Scope::Forward => command == "forward",
                Scope::Boost | Scope::Route => command == "boost",
            }
    }

    /// The commands that take the option, in words.
    pub fn commands(&self) -> String {
        let names = COMMANDS.iter().map(|(name, _)| *name);
        names.filter(|name| self.is_of_command(name)).collect::<Vec<_>>().join(", ")
    }

    /// The tables of a file that take the option, for the reference.
    pub fn tables(&self) -> &'static str {
        match self.scope {
            Scope::Process if self.kind == ValueType::Limit => "[limits]",
            Scope::Process => "top of the file",
            Scope::Start => "in no file",
            Scope::Service => "[[forward]] and [[boost]]",
            Scope::Forward => "[[forward]]",
            Scope::Boost => "[[boost]]",
            Scope::Route => "[[boost.route]]",
            Scope::Cache => "[[forward]], [[boost]] and [[boost.route]]",
        }
    }

    /// Whether it may be given more than once.
    pub fn is_repeatable(&self) -> bool {
        self.values_max > 1
    }

    /// The rows that are keys of a file's table, which takes these scopes; limits have a table of
    /// their own.
    pub(super) fn of_scopes(scopes: &[Scope]) -> impl Iterator<Item = &'static Self> {
        let rows = Self::TABLE.iter().filter(|row| row.kind != ValueType::Limit);
        rows.filter(|row| scopes.contains(&row.scope))
    }

    /// The type of the option with a key of the table.
    pub(super) fn kind_of(key: &str) -> ValueType {
        Self::of_key(key).expect("the key is one of the table").kind
    }

    /// The row of a key.
    pub(super) fn of_key(key: &str) -> Option<&'static Self> {
        Self::TABLE.iter().find(|row| row.key == key)
    }
}

/// A memory of one worker below which nothing moves; see `memory`.
pub(super) const MEMORY_BYTES_PER_WORKER_MIN: u64 = 1 << 20;

/// Host names in one list; so many fill a file to a quarter.
const DOMAINS_MAX: usize = 8192;

/// A row that is given once, and is called the same on the command line and in files. [`Row::text`]
/// follows.
const fn row(scope: Scope, key: &'static str, kind: ValueType, default: &'static str) -> OptionRow {
    OptionRow { flag: Some(key), key, scope, kind, default, values_max: 1, text: "" }
}

impl OptionRow {
    const fn summary(self, text: &'static str) -> Self {
        Self { text, ..self }
    }

    /// What can stand many times in one configuration.
    const fn times(self, values_max: usize) -> Self {
        Self { values_max, ..self }
    }

    /// What the command line calls otherwise than files do.
    const fn flag(self, flag: &'static str) -> Self {
        Self { flag: Some(flag), ..self }
    }

    /// What the command line does not know.
    const fn of_files(self) -> Self {
        Self { flag: None, ..self }
    }

    /// The rows, in the order of the reference.
    pub const TABLE: &'static [Self] = &[
        row(
            Service,
            "name",
            ValueType::Service,
            "(the role, forward or boost, if the process has one service of it; else the first \
             listen address)",
        )
        .of_files()
        .summary(
            "Call the service by this name in the keys of cached responses and in metrics. No \
             other service may have it. A service whose name changes finds nothing of what it \
             stored before.",
        ),
        row(
            Service,
            "listen",
            ValueType::Listen,
            "(127.0.0.1:3128 for forward, 127.0.0.1:8080 for boost)",
        )
        .times(64)
        .summary("Take clients at this address. Port 0 lets the kernel pick one; it is printed."),
        row(Route, "origins", ValueType::Origin, "(none: at least one is needed)")
            .flag("origin")
            .times(256)
            .summary(
                "Pass requests to this web server. Several share the load; on the command line \
                 commas may stand between them.",
            ),
        row(Route, "balance", ValueType::Keyword(&["round-robin", "least-outstanding"]), "round-robin")
            .summary("Pick an origin in turn, or the one with the fewest requests under way."),
        row(Route, "host-header", ValueType::Keyword(&["client", "origin"]), "client")
            .summary("Send the origin the Host that the client asked for, or its own name."),
        row(Route, "host", ValueType::Host, "(any)")
            .of_files()
            .summary("Take requests for this host only. The first route that matches is taken."),
        row(Route, "path", ValueType::Path, "/").of_files().summary(
            "Match requests whose path begins with this. The path is compared in its normal form: \
             escapes of letters, digits, -, ., _ and ~ decoded, slashes merged, . and .. segments \
             removed.",
        ),
        row(Boost, "path-strict", ValueType::Switch, "on").of_files().summary(
            "Where a route has a path other than /: refuse a path (400) that origins may read as \
             the path of another route, because they decode escapes once or twice, merge slashes, \
             remove . and .. segments, or cut at a semicolon; one with %00 or an encoded . or .. \
             segment; and one with a . or .. segment and %2f, %5c or a semicolon.",
        ),
        row(Route, "path-forward", ValueType::Keyword(&["as-sent", "normalised"]), "as-sent").summary(
            "Send the origin the path as the client sent it, or in its normal form. The key of a \
             cached response contains the same form.",
        ),
        row(Route, "pass-fields", ValueType::PassField, "(none)").times(32).summary(
            "Pass this field on from peers outside trust too. Without it a booster removes fields \
             by which a client could describe itself or its request to the origin. The field \
             becomes a part of the cache key.",
        ),
        row(Route, "eject-on-errors", ValueType::Switch, "off").summary(
            "Count answers 502, 503 and 504 as failures of the origin, as if none had come. They \
             are passed on all the same.",
        ),
        row(
            Route,
            "retry-on",
            ValueType::Keyword(&["malformed", "502", "503", "504", "off"]),
            "malformed",
        )
        .times(4)
        .summary(
            "Send an idempotent request without a body to another origin of the route if a \
                 response is malformed, or has this status. What is given replaces malformed. \
                 retries and retry_percent limit how often; what the last origin responds is passed \
                 on. Failed connections are retried in any case.",
        ),
        row(Route, "check", ValueType::Check, "off").summary(
            "Ask each origin for this path every check_interval_ms, and leave out those that fail \
             while there are others.",
        ),
        row(Route, "check-status", ValueType::Statuses, "200-399")
            .summary("Statuses of an origin that is well, in answer to a check."),
        row(Route, "send-proxy", ValueType::Keyword(&["off", "v1", "v2"]), "off").summary(
            "Begin each connection to an origin with a PROXY protocol header, version 1 (text) or \
             2 (binary), that names the client and the address it reached. Such a connection \
             serves no other client.",
        ),
        row(Service, "allow-client", ValueType::Block, "(every client)").times(1024).summary(
            "Serve clients from these addresses only. A forward proxy that other machines can \
             reach does not start without it.",
        ),
        row(Service, "deny-client", ValueType::Block, "(none)")
            .times(1024)
            .summary("Never serve clients from these addresses; wins over allow-client."),
        row(
            Forward,
            "auth-file",
            ValueType::File,
            "(none: who may use the proxy is decided by addresses alone)",
        )
        .summary(
            "Ask clients for a user name and password (Basic) or a token (Bearer), and look them \
             up in this file: a line NAME:HASH, as htpasswd -B and openssl passwd -6 write the \
             hash, or NAME:token:SHA256, for each. Nobody but its owner and group may write it.",
        ),
        row(Forward, "auth-realm", ValueType::Realm, "millrace")
            .summary("Show this to the person who is asked for a password."),
        row(
            Forward,
            "allow-private",
            ValueType::Switch,
            "(on if only this machine can reach the proxy, else off)",
        )
        .summary(
            "Let clients reach loopback, private and other special addresses. Addresses of cloud \
             metadata services (link-local ones, fd00:ec2::/32, fd00:42::42 and a few others) need \
             allow-target all the same.",
        ),
        row(Forward, "allow-target", ValueType::Block, "(none)")
            .times(1024)
            .summary("Let clients reach these addresses, whatever allow-private says."),
        row(Forward, "deny-target", ValueType::Block, "(none)")
            .times(1024)
            .summary("Never let clients reach these addresses; wins over allow-target."),
        row(
            Forward,
            "allow-port",
            ValueType::Port,
            "(all if only this machine can reach the proxy, else none)",
        )
        .times(1024)
        .summary("Let clients reach this port beside 80, 443 and those from 1024."),
        row(Forward, "deny-port", ValueType::Number { least: 1, most: 65535 }, "(none)")
            .times(1024)
            .summary("Never let clients reach this port; wins over allow-port and allow-target."),
        row(Forward, "allow-domain", ValueType::Domain, "(every name)").times(DOMAINS_MAX).summary(
            "Let clients reach these host names only. Targets that are addresses are then denied, \
             except those of allow-target. The addresses of a name are judged as ever.",
        ),
        row(Forward, "deny-domain", ValueType::Domain, "(none)").times(DOMAINS_MAX).summary(
            "Never let clients reach these host names; wins over allow-domain. The machine's \
             search list of domains applies to no name then.",
        ),
        row(Service, "trust", ValueType::Block, "(none)").times(1024).summary(
            "Believe the Forwarded, X-Forwarded-* and PROXY headers that come from these \
             addresses. A booster sends Forwarded, X-Forwarded-For, -Proto and -Host to its \
             origins: after what these addresses said, and in the place of what others did. From \
             these addresses it passes on other fields that describe the request too, such as \
             X-Forwarded-Prefix and X-Original-URL; they are a part of the cache key. Where a \
             PROXY header names a client, that client's address decides about fields.",
        ),
        row(Service, "proxy-protocol", ValueType::Flag, "false").summary(
            "Expect a PROXY protocol header, version 1 or 2, at the beginning of each connection. \
             Needs trust.",
        ),
        row(Service, "proxy-status", ValueType::Switch, "off").summary(
            "Add a member to Proxy-Status (RFC 9209) of each answer that is passed on. Answers \
             that are made here always have one.",
        ),
        row(Service, "congestion", ValueType::Congestion, "system").summary(
            "Congestion control of clients' TCP connections: an algorithm by its name, system for \
             what the kernel is set to, or auto for cubic where the peer has a loopback, private \
             or link-local address (an algorithm that paces, such as bbr, costs CPU there and \
             gains nothing) and the system's for all others.",
        ),
        row(Service, "origin-congestion", ValueType::Congestion, "system")
            .summary("The same for TCP connections to origins."),
        row(Cache, "cache", ValueType::Switch, "on").summary(
            "Keep answers and answer from them, as RFC 9111 lets a shared cache. off: requests go \
             past the cache.",
        ),
        row(Cache, "cache-ttl", ValueType::Ttl, "origin").times(32).summary(
            "How long answers are fresh. origin: as long as the origin says (cache-target, \
             Cache-Control, Expires), or where it says nothing, as cache-heuristic does. default: \
             where it says nothing, so long. override: so long, whatever it says; what must not be \
             stored is not stored all the same, and what must be validated each time is. Without a \
             status it is about those that may be cached without being asked for: 200, 203, 204, \
             206, 300, 301, 308, 404, 405, 410, 414 and 501. Responses with 400, 401 and 429 are \
             stored only if a status or a range names them.",
        ),
        row(Cache, "cache-ttl-max", ValueType::Time, "3650d")
            .summary("The longest that an answer is fresh where cache-ttl is not override."),
        row(Cache, "cache-heuristic", ValueType::Number { least: 0, most: 100 }, "10").summary(
            "How long an answer is fresh whose origin does not say: so many percent of the time \
             since its Last-Modified (RFC 9111 section 4.2.2). 0: it is validated each time.",
        ),
        row(Cache, "cache-heuristic-max", ValueType::Time, "1d")
            .summary("The longest that an answer is fresh by cache-heuristic."),
        row(Cache, "cache-stale-if-error", ValueType::Time, "0s").summary(
            "How long a stale answer stands in for an origin that cannot be reached or answers \
             500, 502, 503 or 504, where the answer itself neither says (RFC 5861) nor forbids it.",
        ),
        row(Cache, "cache-stale-while-revalidate", ValueType::Time, "0s").summary(
            "How long a stale answer is used while it is validated in the background, where the \
             answer itself neither says (RFC 5861) nor forbids it.",
        ),
        row(Cache, "cache-set-cookie", ValueType::Keyword(&["explicit", "shared", "never"]), "never")
            .summary(
                "Which responses with Set-Cookie are stored, and sent with it to other clients. \
                 never: none. explicit: those that say how long they are fresh; the cookies of a \
                 validation (304) are stored too. shared: those that speak to shared caches \
                 (public, s-maxage, a field of cache-target).",
            ),
        row(Cache, "cache-request-directives", ValueType::Switch, "on").summary(
            "Heed the Cache-Control and Pragma of requests (RFC 9111 section 5.2.1), by which a \
             client may have an answer validated, say.",
        ),
        row(Cache, "cache-target", ValueType::Field, "CDN-Cache-Control").times(8).summary(
            "A field of answers by which origins speak to this cache (RFC 9213). The first of \
             these that an answer has counts in the place of its Cache-Control and Expires.",
        ),
        row(
            Cache,
            "cache-key",
            ValueType::FieldOrCookie,
            "(the URL alone, with the fields that trusted peers describe a request by)",
        )
        .times(64)
        .summary(
            "Keep the responses to requests apart that differ in this field or cookie, though \
             their origin does not say so by Vary. A field counts as the origin receives it.",
        ),
        row(Cache, "cache-ignore-query", ValueType::Parameter, "(none)").times(256).summary(
            "Take URLs as the same that differ in this query parameter alone. The origin gets it \
             all the same.",
        ),
        row(Cache, "cache-bypass", ValueType::FieldOrCookie, "(none)").times(64).summary(
            "Neither answer requests that bring this field or cookie from the cache, nor store the \
             answers to them.",
        ),
        row(Cache, "cache-finish", ValueType::Switch, "on").summary(
            "Receive an answer to its end, and store it, when the client that asked for it leaves; \
             a part (206) is received at most 64 KiB ahead of its readers, and only while it has \
             some.",
        ),
        row(Cache, "cache-status", ValueType::Switch, "on")
            .summary("Say in Cache-Status (RFC 9211) of each answer what the cache did."),
        row(
            Process,
            "engine",
            ValueType::Keyword(&["auto", "epoll", "uring", "uselect", "poll", "select"]),
            "auto",
        )
        .summary(
            "How to wait for sockets: epoll(7), or io_uring(7) of Linux 6.1 or newer. auto takes \
             uring where it can be had and is not dearer than epoll, and says what it took. \
             io_uring needs 136 KB of locked memory (RLIMIT_MEMLOCK) for each worker, and at start \
             for 4 more rings (auto) or 1 more (uring): if there is not enough, auto uses epoll \
             for all workers, and uring is an error. uselect reads from memory what happens to \
             connections, which uselectd(8) has the kernel keep up to date; auto never takes it, \
             and where uselectd does not run or does not serve this process, millrace does not \
             start by it. When uselectd ends later, millrace says so and goes on by epoll. For \
             comparison alone: poll(2) and select(2), whose every wait costs time for each \
             connection, idle ones too.",
        ),
        row(Process, "uselectd", ValueType::File, "/run/uselectd.sock")
            .summary("The socket of uselectd(8), for engine uselect."),
        row(Process, "spin-us", ValueType::Number { least: 0, most: 1000 }, "0").summary(
            "With engine uselect: for how many microseconds a worker looks for work before it \
             sleeps, where that has lately found some and nobody else wants the processor. Answers \
             come sooner, and a processor is kept busy.",
        ),
        row(Process, "splice", ValueType::Keyword(&["fixed", "calibrated", "never", "always"]), "fixed")
            .summary(
                "Which bodies are spliced, moved through a pipe inside the kernel (splice(2)), \
                 instead of copied: those from fixed lengths on, or from calibrated ones, which \
                 are measured for up to a second at start and said; never any; always all. never \
                 and always are for comparisons.",
            ),
        row(
            Process,
            "workers",
            ValueType::Number { least: 1, most: 1024 },
            "(the processors that the process may use)",
        )
        .summary("Worker threads."),
        row(
            Process,
            "memory",
            ValueType::Size { least: MEMORY_BYTES_PER_WORKER_MIN, most: 1 << 44 },
            "256M",
        )
        .summary(
            "What the cache (cache-memory) and all pools may take together; the pools at least 1M \
             a worker. When those are full, reading pauses.",
        ),
        row(Process, "user", ValueType::User, "auto").summary(
            "Whose rights to have where millrace is started as root; ports and sockets of unix: \
             addresses are opened before. auto takes the user millrace if there is one, else \
             nobody; and root, without its capabilities, where a file of the configuration would \
             be out of their reach, which is said. Started as anybody else, millrace stays who it \
             is.",
        ),
        row(Process, "sandbox", ValueType::Keyword(&["auto", "off"]), "auto").summary(
            "Restrict the process to the files of its configuration (Landlock) and to the system \
             calls that it is made of (seccomp), and hide its memory from other processes and from \
             core dumps. What this kernel cannot do is said at start. off is for debugging tools.",
        ),
        row(Process, "sandbox-folder", ValueType::Folder, "(those of the configuration's files)")
            .times(64)
            .summary(
                "Leave the sandboxed process this folder as well: for logs, Unix sockets and other \
                 files that a reload may name and the configuration does not have at the start.",
            ),
        row(Process, "no-cache", ValueType::Flag, "false")
            .summary("Have no cache: store nothing, whatever the other options of the cache say."),
        row(
            Process,
            "cache-memory",
            ValueType::MemoryShare {
                least: iolite::limits::SLAB_BYTES_MIN as u64,
                most: 1 << 44,
                percent_max: 90,
            },
            "50%",
        )
        .summary(
            "What the cache takes of memory: where answers are kept, and where those of disks pass \
             through. 0: there is no cache. A share in percent leaves the pools at least 1M a \
             worker, and is 0 where no 4M remain.",
        ),
        row(
            Process,
            "disk",
            ValueType::Disk { least: 16 << 20, most: 1 << 50 },
            "(none: answers are kept in memory alone)",
        )
        .times(64)
        .summary(
            "Keep answers in files in this folder too, up to so many bytes of them; they are there \
             again after a restart. The folder is millrace's alone: it is made if need be, and who \
             runs millrace has to own it.",
        ),
        row(Process, "disk-reads", ValueType::Keyword(&["on-miss", "always"]), "on-miss").summary(
            "What is asked of disks: on-miss is what memory has not; always is each answer that they \
             have, read and compared again though it is in memory. That is slower: for tests, and \
             for memory that nobody trusts.",
        ),
        row(Process, "cache-send", ValueType::Keyword(&["auto", "copy", "zero-copy"]), "auto").summary(
            "How hot bodies go from the cache's memory to a client: those of 16 KB to 8 MB that were \
             sent lately, so that the processor's cache has them. auto takes the cheaper of copy and \
             reference (sendfile(2)), which depends on the processor: it measures both for some \
             milliseconds at start, and says what it took. Other bodies go by copy below 16 KB and \
             by reference from there on; the client for whom a body is fetched gets a copy.",
        ),
        row(Process, "access-log", ValueType::Log, "off").summary(
            "Append a record of each finished exchange to this file. SIGUSR1 reopens it, SIGHUP \
             too.",
        ),
        row(Process, "log-format", ValueType::Keyword(&["common", "combined", "json"]), "combined")
            .summary("The form of the access log's records."),
        row(Process, "admin", ValueType::Admin, "off").times(4).summary(
            "Answer GET /metrics, /healthz, /config and /cache/stat here, and GET /cache and \
             /cache/object, POST /reload, /drain, /log/reopen and /cache/purge to who may ask for \
             them: at a Unix socket, whose file only its owner may use, the same user and root; at \
             a TCP address who has the token.",
        ),
        row(Process, "admin-token-file", ValueType::File, "(none: a TCP admin address only tells)")
            .summary(
                "A file with one line, a token of 16 to 1024 printable characters, that a POST to \
                 a TCP admin address must bring, and a GET of what is stored: Authorization: \
                 Bearer TOKEN. It is read when millrace starts, and another one by an upgrade or a \
                 restart; others than its owner and group may not have access to it.",
            ),
        row(Process, "admin-name", ValueType::Name, "(none: by its address or localhost only)").summary(
            "The host name by which a TCP admin address may be asked as well. Any other name is \
             refused, for a web page could have made it point here.",
        ),
        row(Start, "upgrade", ValueType::Flag, "false").summary(
            "Take over from the running process that listens at the admin Unix socket of this \
             configuration: its listening sockets are used on, so no connection is refused, and \
             once this process serves, that one drains and ends. If this one fails before, that \
             one goes on.",
        ),
        row(Process, "limit", ValueType::Limit, "(the table of limits)")
            .times(256)
            .summary("Set a row of the table of limits, such as head_ms=10s."),
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_apart_and_sentences_end() {
        for (index, row) in OptionRow::TABLE.iter().enumerate() {
            assert!(row.text.ends_with('.'), "{}", row.key);
            let is_for_files =
                matches!(row.scope, Scope::Boost | Scope::Route) || row.key == "name";
            assert!(row.flag.is_some() || is_for_files, "{}", row.key);
            for other in &OptionRow::TABLE[index + 1..] {
                assert!(row.key != other.key, "{}", row.key);
                assert!(row.flag.is_none() || row.flag != other.flag, "{}", row.key);
            }
        }
    }
}
