//! The types of options: names and descriptions of their values for help, reference and errors.

use super::value;

/// The type of a value, with its bounds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ValueType {
    /// A flag without a value; a Boolean in files.
    Flag,
    /// `on` or `off`; in files also a Boolean.
    Switch,
    /// A whole number.
    Number {
        /// Least value.
        least: u64,
        /// Greatest value.
        most: u64,
    },
    /// A whole number, or `off`.
    NumberOrOff {
        /// Least value.
        least: u64,
        /// Greatest value.
        most: u64,
    },
    /// A number of bytes.
    Size {
        /// Least value in bytes.
        least: u64,
        /// Greatest value in bytes.
        most: u64,
    },
    /// One of these keywords.
    Keyword(&'static [&'static str]),
    /// An address to listen on.
    ListenAddress,
    /// An address to listen on, or `off`.
    AdminAddress,
    /// The name of a service.
    ServiceName,
    /// A host name.
    HostName,
    /// The mail address of an ACME account.
    MailAddress,
    /// A name of a certificate.
    ServerName,
    /// A URL with the scheme https.
    HttpsUrl,
    /// An address and a port, or `off`.
    SocketAddress,
    /// A file to append to, `-` for standard output, or `off`.
    LogFile,
    /// An origin server.
    Origin,
    /// A FastCGI server.
    FastCgi,
    /// The socket of a program.
    ProgramSocket,
    /// An address block.
    Cidr,
    /// A port, or `all`.
    Port,
    /// A host or a wildcard that the host of a request has to match.
    HostPattern,
    /// A host name, or a wildcard for all names below one.
    DomainPattern,
    /// A file to read.
    File,
    /// An authentication realm.
    Realm,
    /// The beginning of a path.
    PathPrefix,
    /// A request header field that is removed unless a trusted peer sent it.
    PassedField,
    /// The path of a health check, or `off`.
    CheckPath,
    /// A status or a range of statuses.
    Statuses,
    /// A congestion control algorithm, or how to choose one.
    Congestion,
    /// The user and group of the process.
    User,
    /// A directory.
    Folder,
    /// The name of a file.
    FileName,
    /// A pattern of file names.
    NamePattern,
    /// A pattern of extensions of file names.
    ExtensionPattern,
    /// A place at which the file of a request is looked for.
    TryFile,
    /// A path of a file below the folder of a route.
    FilePath,
    /// An extension and its media type.
    MediaType,
    /// A pattern of media types.
    MediaPattern,
    /// A charset, or `off`.
    Charset,
    /// The value of `Cache-Control`, or `off`.
    CacheControl,
    /// A size, or a percentage of `memory`.
    MemoryShare {
        /// Least value other than 0, in bytes.
        least: u64,
        /// Greatest value in bytes.
        most: u64,
        /// Greatest percentage.
        percent_max: u64,
    },
    /// A directory and the size of the files in it.
    Disk {
        /// Least size in bytes.
        least: u64,
        /// Greatest size in bytes.
        most: u64,
    },
    /// A time in whole seconds.
    Duration,
    /// A time in whole seconds, or `off`.
    DurationOrOff,
    /// A rule for the lifetime of responses.
    CacheLifetime,
    /// The name of a header field, or `off`.
    FieldName,
    /// A request header field or a cookie.
    FieldOrCookie,
    /// A query parameter.
    QueryParameter,
    /// A limit and its value.
    Limit,
}

impl ValueType {
    /// Returns the keyword that a Boolean in a file stands for; `None` if it is not valid for this
    /// type.
    pub fn keyword_of_bool(&self, switch: bool) -> Option<&'static str> {
        let has_off = match self {
            Self::Flag | Self::Switch => return Some(if switch { "on" } else { "off" }),
            Self::AdminAddress
            | Self::SocketAddress
            | Self::LogFile
            | Self::CheckPath
            | Self::DurationOrOff
            | Self::NumberOrOff { .. }
            | Self::FieldName
            | Self::Charset
            | Self::CacheControl => true,
            Self::Keyword(words) => words.contains(&"off"),
            _ => false,
        };
        (has_off && !switch).then_some("off")
    }

    /// Returns the placeholder of the value in help, such as `FILE` (the value name of clap).
    pub fn value_name(&self) -> &'static str {
        self.description().0
    }

    /// Returns the valid values, to follow "expected: " in an error.
    pub fn expected(&self) -> String {
        match *self {
            Self::Number { least, most } => format!("a whole number from {least} to {most}"),
            Self::NumberOrOff { least, most } => {
                format!("a whole number from {least} to {most}, off")
            }
            Self::Size { least, most } => sizes(least, most),
            Self::Keyword(words) => words.join(", "),
            Self::MemoryShare { least, most, percent_max } => {
                let sizes = sizes(least, most);
                format!("0 for none, {sizes}, or 1% to {percent_max}% of memory")
            }
            Self::Disk { least, most } => {
                format!("DIRECTORY:SIZE with an absolute path; SIZE is {}", sizes(least, most))
            }
            _ => self.description().1.to_owned(),
        }
    }

    /// Returns the value name, and the valid values. The latter are empty for types with bounds or
    /// keywords: [`ValueType::expected`] writes those.
    fn description(&self) -> (&'static str, &'static str) {
        match self {
            Self::Flag => ("", "true, false"),
            Self::Switch => ("on|off", "on, off"),
            Self::Number { .. } => ("N", ""),
            Self::NumberOrOff { .. } => ("N|off", ""),
            Self::Size { .. } => ("SIZE", ""),
            Self::Keyword(_) => ("VALUE", ""),
            Self::MemoryShare { .. } => ("SIZE|PERCENT%", ""),
            Self::Disk { .. } => ("DIR:SIZE", ""),
            Self::ListenAddress => ("ADDRESS", ADDRESSES),
            Self::AdminAddress => ("ADDRESS", ADMIN_ADDRESSES),
            Self::ServiceName => ("NAME", "1 to 64 of the characters A-Z, a-z, 0-9, -, _ and ."),
            Self::HostName => ("NAME", "a host name"),
            Self::MailAddress => ("MAIL", "a mail address"),
            Self::ServerName => ("NAME", "a host name without a wildcard"),
            Self::HttpsUrl => ("URL", "https://HOST[:PORT]/PATH"),
            Self::SocketAddress => {
                ("ADDRESS|off", "ADDRESS:PORT, [IPV6]:PORT, localhost:PORT, off")
            }
            Self::LogFile => ("FILE|off", "the path of a file, - for standard output, off"),
            Self::Origin => {
                ("URL", "http://HOST[:PORT], https://HOST[:PORT], HOST also as [IPV6], unix:PATH")
            }
            Self::FastCgi => ("ADDRESS", "unix:PATH, HOST:PORT, HOST also as [IPV6]"),
            Self::ProgramSocket => ("ADDRESS", "unix:PATH"),
            Self::Cidr => ("CIDR", "ADDRESS, ADDRESS/BITS"),
            Self::Port => ("PORT", "a port from 1 to 65535, all"),
            Self::HostPattern => {
                ("HOST", "a host name, *.NAME for all names below it, an IP address")
            }
            Self::DomainPattern => ("NAME", DOMAINS),
            Self::File => ("FILE", "the path of a file"),
            Self::Realm => {
                ("TEXT", "1 to 100 printable ASCII characters without quotes and backslashes")
            }
            Self::PathPrefix => ("PATH", PATHS),
            Self::PassedField => ("NAME", PASSED_FIELDS),
            Self::CheckPath => {
                ("PATH|off", "a path that begins with /, optionally with a query; off")
            }
            Self::Statuses => ("STATUS", "a status from 200 to 599, or a range such as 200-299"),
            Self::Congestion => (
                "NAME",
                "system, auto, or an algorithm of the kernel: up to 15 of the characters A-Z, a-z, 0-9, \
                 - and _",
            ),
            Self::User => ("USER", "auto, USER, USER:GROUP, each a name or a number"),
            Self::Folder => ("DIR", "the path of a directory"),
            Self::FileName => ("NAME", "the name of a file without a slash"),
            Self::NamePattern => ("PATTERN", NAME_PATTERNS),
            Self::ExtensionPattern => (".EXT", EXTENSION_PATTERNS),
            Self::TryFile => ("PATH", TRIED_PATHS),
            Self::FilePath => ("PATH", "a path below the directory, such as /index.html"),
            Self::MediaPattern => ("TYPE", "a media type, such as text/* or *+json"),
            Self::MediaType => (".EXT=TYPE", ".EXT=TYPE, such as .glb=model/gltf-binary"),
            Self::Charset => ("NAME|off", "the name of a charset, such as utf-8; off"),
            Self::CacheControl => ("VALUE|off", "directives, such as public, max-age=3600; off"),
            Self::Duration => ("TIME", "a time from 0s to 3650d: a whole number with s, m, h or d"),
            Self::DurationOrOff => ("TIME|off", DURATIONS_OR_OFF),
            Self::CacheLifetime => ("LIFETIME", LIFETIMES),
            Self::FieldName => ("NAME|off", "the name of a header field, off"),
            Self::FieldOrCookie => (
                "KIND:NAME",
                "field:NAME, cookie:NAME, cookie:PREFIX* for all cookies with a prefix",
            ),
            Self::QueryParameter => ("NAME|*", PARAMETERS),
            Self::Limit => ("NAME=VALUE", "NAME=VALUE with a limit that millrace.toml(5) lists"),
        }
    }
}

const ADDRESSES: &str = "ADDRESS:PORT, [IPV6]:PORT, localhost:PORT, each also as \
                         tls://ADDRESS:PORT, unix:PATH";
const ADMIN_ADDRESSES: &str = "ADDRESS:PORT, [IPV6]:PORT, localhost:PORT, each also as \
                               tls://ADDRESS:PORT, unix:PATH, off";
const DURATIONS_OR_OFF: &str = "a time from 0s to 3650d: a whole number with s, m, h or d; off";
const DOMAINS: &str = "a host name, *.NAME for all names below it; internationalised names as \
                       A-labels (xn--...)";
const NAME_PATTERNS: &str = "a name without a slash, in which * stands for any characters and ? \
                             for one byte";
const EXTENSION_PATTERNS: &str = "an extension with its dot, in which * stands for any characters \
                                  and ? for one byte";
const TRIED_PATHS: &str = "{path}, {path} with a suffix as in {path}.html, or a path such as \
                           /index.html; without . and .. segments";
const LIFETIMES: &str = "[STATUS] origin, [STATUS] default TIME, [STATUS] override TIME; STATUS is \
                         a status or a range, TIME a whole number with s, m, h or d, as in \
                         default 10s, 404-410 override 1m";
const PARAMETERS: &str = "the encoded name of a parameter, PREFIX* for all with a prefix, * for \
                          the whole query";
const PATHS: &str = "a path that begins with /, without ? and #, in normal form: no //, no . and .. \
                     segments, no % without an escape, no escapes of visible characters other than \
                     / \\ % ? # and ;, upper-case digits in escapes";
const PASSED_FIELDS: &str = "X-Real-Ip, X-Client-IP, Client-IP, True-Client-IP, CF-Connecting-IP, \
                             Fastly-Client-IP, X-Cluster-Client-IP, X-Host, X-HTTP-Host-Override, \
                             X-Scheme, X-Url-Scheme, X-Script-Name, Front-End-Https, \
                             X-Original-*, X-Rewrite-*, and X-Forward* except \
                             X-Forwarded-For, X-Forwarded-Host and X-Forwarded-Proto";

fn sizes(least: u64, most: u64) -> String {
    let [least, most] = [least, most].map(value::write_size);
    format!("{least} to {most} in bytes, or with K, M, G or T for powers of 1024")
}
