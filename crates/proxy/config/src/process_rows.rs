//! The rows of the table of options for the process.

use super::option_row::row;
use super::options::{Group, OptionRow, Scope};
use super::value_type::ValueType;
use Group::{AccessLogAndAdmin, Processing, Storage};
use Scope::{Process, Start};

/// The least memory per worker, in bytes: with less, its transfers could stall. See `memory`.
pub(super) const MEMORY_BYTES_PER_WORKER_MIN: u64 = 1 << 20;

impl OptionRow {
    /// The rows for the process.
    pub(super) const PROCESS: &'static [Self] = &[
        row(
            Process,
            Processing,
            "engine",
            ValueType::Keyword(&["auto", "epoll", "uring", "uselect", "poll", "select"]),
            "auto",
        )
        .summary("How to wait for sockets")
        .detail(
            "auto: uring if it is available and costs no more than epoll, otherwise epoll; the \
             choice is printed at start. epoll: epoll(7). uring: io_uring(7), with Linux 6.1 or \
             newer. It needs 136 KB of locked memory (RLIMIT_MEMLOCK) per worker. At start it needs \
             the same amount 4 more times (auto) or once more (uring). If there is not enough, auto \
             uses epoll for all workers, and uring is an error. uselect: readiness of connections is \
             read from memory that the kernel keeps up to date for uselectd(8). auto never chooses \
             it. If uselectd does not run or does not serve this process, millrace does not start; \
             if uselectd ends later, millrace reports it and continues with epoll. poll and \
             select: poll(2) and select(2), for comparison only; each wait takes time for each \
             connection, including idle ones.",
        ),
        row(Process, Processing, "uselectd", ValueType::File, "/run/uselectd.sock")
            .summary("Socket of uselectd(8), for engine uselect"),
        row(Process, Processing, "spin-us", ValueType::Number { least: 0, most: 1000 }, "0")
            .summary("Microseconds to poll before a worker sleeps, for engine uselect")
            .detail(
                "A worker polls only where polling has found work recently and no other thread \
                 wants the processor. Polling lowers latency and keeps a processor busy.",
            ),
        row(
            Process,
            Processing,
            "splice",
            ValueType::Keyword(&["fixed", "calibrated", "never", "always"]),
            "fixed",
        )
        .summary("Which bodies to splice instead of copying them")
        .detail(
            "A spliced body moves through a pipe inside the kernel (splice(2)). fixed: bodies that are \
             at least as long as built-in thresholds. calibrated: the same with thresholds that \
             millrace measures at start, for up to a second, and prints. never and always are for \
             comparisons.",
        ),
        row(
            Process,
            Processing,
            "workers",
            ValueType::Number { least: 1, most: 1024 },
            "(the number of processors that the process may use)",
        )
        .summary("Number of worker threads"),
        row(
            Process,
            Storage,
            "memory",
            ValueType::Size { least: MEMORY_BYTES_PER_WORKER_MIN, most: 1 << 44 },
            "256M",
        )
        .summary("Memory for the cache and all buffer pools together")
        .detail(
            "The cache takes cache-memory of it. The pools need at least 1M per worker. While they \
             are exhausted, millrace stops reading from its connections.",
        ),
        row(Process, Processing, "user", ValueType::User, "auto")
            .summary("User, and optionally group, of a process that is started as root")
            .detail(
                "Ports and sockets of unix: addresses are opened before the process changes its \
                 user. auto: the user `millrace` if it exists, otherwise `nobody`. If that user \
                 cannot access a file of the configuration, auto stays root without capabilities, which \
                 is printed. A process that is not started as root keeps its user.",
            ),
        row(Process, Processing, "cgi-user", ValueType::User, "auto")
            .summary("User, and optionally group, of CGI programs if started as root")
            .detail(
                "auto: the first of the users `millrace-cgi`, `nobody`, `www-data` and `daemon` that \
                 exists and is not the user of millrace. This user should have no files and no other \
                 processes. The user of millrace is refused. A process that is not started as root \
                 runs programs as its own user; they can then read all \
                 files that millrace can read.",
            ),
        row(Process, Processing, "sandbox", ValueType::Keyword(&["auto", "off"]), "auto")
            .summary("Restrict the process to the files and system calls that it needs")
            .detail(
                "auto: Landlock allows only the files of the configuration, seccomp only the \
                 system calls that millrace uses, and the memory is hidden from other processes \
                 and from core dumps. Restrictions that this kernel does not support are printed at \
                 start. off is for debugging tools. A process with keys of TLS never writes a core \
                 dump.",
            ),
        row(
            Process,
            Processing,
            "sandbox-folder",
            ValueType::Folder,
            "(the directories of the configuration's files)",
        )
        .repeatable(64)
        .summary("Let the sandboxed process use this directory as well")
        .detail(
            "For logs, Unix sockets and other files that a reload may name and that are not in the \
             configuration at start.",
        ),
        row(Process, Storage, "no-cache", ValueType::Flag, "false")
            .summary("Store nothing, whatever the other cache options are"),
        row(
            Process,
            Storage,
            "cache-memory",
            ValueType::MemoryShare {
                least: iolite::limits::SLAB_BYTES_MIN as u64,
                most: 1 << 44,
                percent_max: 90,
            },
            "50%",
        )
        .summary("Part of memory that the cache takes")
        .detail(
            "Stored responses, including those read from disks, are in this memory. 0: no cache. A \
             percentage is reduced so that the pools keep 1M per worker. If that leaves less than \
             4M, there is no cache.",
        ),
        row(
            Process,
            Storage,
            "disk",
            ValueType::Disk { least: 16 << 20, most: 1 << 50 },
            "(none; responses are stored only in memory)",
        )
        .repeatable(64)
        .summary("Store responses in files of this directory too, up to this size")
        .detail(
            "Stored responses survive a restart. The directory belongs to millrace alone: it is \
             created if necessary, and the user that runs millrace has to own it.",
        ),
        row(Process, Storage, "iolited", ValueType::File, "(none)")
            .summary("Socket of iolited(8), from whose memory to serve files")
            .detail(
                "Files of 32K to 32M are served from the memory of iolited, where other programs \
                 read them too, instead of from the cache of millrace or of the kernel. If \
                 iolited does not run or does not have a file, millrace reads the file itself.",
            ),
        row(Process, Storage, "disk-reads", ValueType::Keyword(&["on-miss", "always"]), "on-miss")
            .summary("When to read a stored response from disk")
            .detail(
                "on-miss: if memory does not have it. always: each time, to compare the copy in \
                 memory with it; this is slower and is meant for tests and for unreliable memory.",
            ),
        row(
            Process,
            Storage,
            "cache-send",
            ValueType::Keyword(&["auto", "copy", "zero-copy"]),
            "auto",
        )
        .summary("How to send hot bodies from the cache")
        .detail(
            "A hot body has 16 KB to 8 MB and was sent recently, so that the processor's cache \
             contains it. copy: by copying. zero-copy: by reference (sendfile(2)). auto: by the \
             cheaper way, which depends on the processor; both are measured for some milliseconds \
             at start, and the choice is printed. Of all other bodies, those below 16 KB are \
             copied and the larger ones are sent zero-copy. The client for which a body is fetched \
             gets a copy.",
        ),
        row(Process, AccessLogAndAdmin, "access-log", ValueType::LogFile, "off")
            .summary("Append a record of each finished exchange to this file")
            .detail(
                "A record is written up to one second after the end of its exchange. The records of \
                 different workers are not in the order of time. SIGUSR1 and SIGHUP reopen the \
                 file.",
            ),
        row(
            Process,
            AccessLogAndAdmin,
            "log-format",
            ValueType::Keyword(&["common", "combined", "json"]),
            "combined",
        )
        .summary("Format of the access log"),
        row(Process, AccessLogAndAdmin, "admin", ValueType::AdminAddress, "off")
            .repeatable(4)
            .summary("Serve metrics and administration on this address")
            .detail(
                "GET /metrics, /healthz, /config and /cache/stat are served to every client. GET \
                 /cache and /cache/object and POST /reload, /drain, /log/reopen, /acme/test and \
                 /cache/purge need a privilege. On a Unix socket, root and the user that runs \
                 millrace have it. On a TCP address, clients with the token of admin-token-file have it.",
            ),
        row(Process, AccessLogAndAdmin, "admin-certificate", ValueType::File, "(none)")
            .summary("PEM file with the certificate chain of tls:// admin addresses")
            .detail("It needs admin-key. A reload reads both files again."),
        row(Process, AccessLogAndAdmin, "admin-key", ValueType::File, "(none)")
            .summary("PEM file with the private key of admin-certificate")
            .detail("Other users must not be able to read the file."),
        row(
            Process,
            AccessLogAndAdmin,
            "admin-token-file",
            ValueType::File,
            "(none; TCP admin addresses serve no privileged request)",
        )
        .summary("File with the token for privileged requests to TCP admin addresses")
        .detail(
            "The file has one line with a token of 16 to 1024 printable characters, which a \
             request sends as Authorization: Bearer TOKEN. The file is read at start; a new token \
             needs an upgrade or a restart. Only the owner and the group may have access to the \
             file.",
        ),
        row(
            Process,
            AccessLogAndAdmin,
            "admin-name",
            ValueType::HostName,
            "(none; only the address and localhost)",
        )
        .summary("Host name that requests to a TCP admin address may use")
        .detail(
            "Requests for any other name are refused, because a web page could have made that name \
             point to this address.",
        ),
        row(Start, Processing, "upgrade", ValueType::Flag, "false")
            .summary("Take over from the running process with the same admin Unix socket")
            .detail(
                "The new process uses the listening sockets of the old one, so that no connection \
                 is refused. Once the new process serves, the old one drains and ends. If the new \
                 process fails before that, the old one continues.",
            ),
        row(Process, Processing, "limit", ValueType::Limit, "(the table of limits)")
            .repeatable(256)
            .summary("Set a limit or timeout, such as head_ms=10s; see millrace.toml(5)"),
    ];
}
