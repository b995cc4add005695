//! The types of options: what is allowed, as help, the reference and the errors say it.

use super::value;

/// The type of a value, with its bounds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ValueType {
    /// A flag without a value; true or false in files.
    Flag,
    /// On or off; true or false in files too.
    Switch,
    /// A whole number.
    Number {
        /// The least allowed.
        least: u64,
        /// The greatest allowed.
        most: u64,
    },
    /// Bytes.
    Size {
        /// The least allowed, in bytes.
        least: u64,
        /// The greatest allowed, in bytes.
        most: u64,
    },
    /// One of a few words.
    Keyword(&'static [&'static str]),
    /// An address to listen on.
    Listen,
    /// An address to listen on, or `off`.
    Admin,
    /// The name of a service.
    Service,
    /// The name of a host.
    Name,
    /// A file to append to, `-` for standard output, or `off`.
    Log,
    /// An origin server.
    Origin,
    /// A block of addresses.
    Block,
    /// A port, or `all`.
    Port,
    /// A host to match.
    Host,
    /// A name, or all names below it.
    Domain,
    /// A file to read.
    File,
    /// What a password is asked for.
    Realm,
    /// The beginning of a path to match.
    Path,
    /// A field that is removed from the requests of untrusted peers.
    PassField,
    /// The path of a health check, or `off`.
    Check,
    /// A status or a range of statuses.
    Statuses,
    /// A choice of congestion control.
    Congestion,
    /// Whose rights the process has.
    User,
    /// A folder.
    Folder,
    /// A part of a memory.
    MemoryShare {
        /// The least that is something, in bytes.
        least: u64,
        /// The greatest allowed, in bytes.
        most: u64,
        /// The greatest allowed, of a hundred.
        percent_max: u64,
    },
    /// A folder and what its files may take.
    Disk {
        /// The least allowed, in bytes.
        least: u64,
        /// The greatest allowed, in bytes.
        most: u64,
    },
    /// A time of whole seconds.
    Time,
    /// How long answers are fresh, and who says so.
    Ttl,
    /// A name of a field, or `off`.
    Field,
    /// A field or a cookie that a request may bring.
    FieldOrCookie,
    /// A query parameter.
    Parameter,
    /// A limit and its value.
    Limit,
}

impl ValueType {
    /// The word that a Boolean of a file means where such a value stands; `None`: none.
    pub fn keyword_of_bool(&self, switch: bool) -> Option<&'static str> {
        let is_off = match self {
            Self::Flag | Self::Switch => return Some(if switch { "on" } else { "off" }),
            Self::Admin | Self::Log | Self::Check | Self::Field => true,
            Self::Keyword(words) => words.contains(&"off"),
            _ => false,
        };
        (is_off && !switch).then_some("off")
    }

    /// What `--help` shows in place of a value.
    pub fn placeholder(&self) -> &'static str {
        self.description().0
    }

    /// What is allowed, as the end of a sentence.
    pub fn expected(&self) -> String {
        match *self {
            Self::Number { least, most } => format!("a whole number from {least} to {most}"),
            Self::Size { least, most } => sizes(least, most),
            Self::Keyword(words) => words.join(", "),
            Self::MemoryShare { least, most, percent_max } => {
                let sizes = sizes(least, most);
                format!("0 for none, {sizes}, a part of memory from 1% to {percent_max}%")
            }
            Self::Disk { least, most } => {
                let sizes = sizes(least, most);
                format!("the path of a folder from its slash on, a colon, and {sizes}")
            }
            _ => self.description().1.to_owned(),
        }
    }

    /// The placeholder, and what is allowed where no bounds or words of the row are a part of it.
    fn description(&self) -> (&'static str, &'static str) {
        match self {
            Self::Flag => ("", "true, false"),
            Self::Switch => ("on|off", "on, off"),
            Self::Number { .. } => ("N", ""),
            Self::Size { .. } => ("SIZE", ""),
            Self::Keyword(_) => ("WORD", ""),
            Self::MemoryShare { .. } => ("SIZE|PERCENT%", ""),
            Self::Disk { .. } => ("DIR:SIZE", ""),
            Self::Listen => ("ADDRESS", "ADDRESS:PORT, [IPV6]:PORT, localhost:PORT, unix:PATH"),
            Self::Admin => ("ADDRESS", "ADDRESS:PORT, [IPV6]:PORT, localhost:PORT, unix:PATH, off"),
            Self::Service => ("NAME", "1 to 64 letters, digits, -, _ and ."),
            Self::Name => ("NAME", "a host name"),
            Self::Log => ("FILE|off", "a file's path, - for standard output, off"),
            Self::Origin => ("URL", "http://HOST[:PORT], http://[IPV6][:PORT], unix:PATH"),
            Self::Block => ("CIDR", "ADDRESS, ADDRESS/BITS"),
            Self::Port => ("PORT", "a port from 1 to 65535, all"),
            Self::Host => ("HOST", "a host name, *.NAME for all names below it, an address"),
            Self::Domain => (
                "NAME",
                "a host name, *.NAME for all names below it; names that are not ASCII as their \
                 A-labels, xn--...",
            ),
            Self::File => ("FILE", "a file's path"),
            Self::Realm => {
                ("TEXT", "1 to 100 printable ASCII characters without quotes and backslashes")
            }
            Self::Path => ("PATH", PATHS),
            Self::PassField => ("NAME", PASS_FIELDS),
            Self::Check => ("PATH|off", "a path from its slash on, with ? if need be; off"),
            Self::Statuses => {
                ("STATUS", "a status from 200 to 599, or a range of them like 200-299")
            }
            Self::Congestion => (
                "NAME",
                "system, auto, an algorithm that the kernel has: up to 15 letters, digits, - and _",
            ),
            Self::User => {
                ("USER", "auto, a user's name or number, with :GROUP behind it for another group")
            }
            Self::Folder => ("DIR", "a folder's path"),
            Self::Time => ("TIME", "a whole number with s, m, h or d, 0s to 3650d"),
            Self::Ttl => (
                "LIFETIME",
                "origin, default TIME, override TIME, each alone or after a status or a range of \
                 them, as in 404 default 10s; TIME is a whole number with s, m, h or d, 0s to \
                 3650d",
            ),
            Self::Field => ("NAME|off", "a field's name, off"),
            Self::FieldOrCookie => (
                "KIND:NAME",
                "field:NAME, cookie:NAME, cookie:NAME* for all cookies whose names begin so",
            ),
            Self::Parameter => (
                "NAME|*",
                "a parameter's name as it is sent, NAME* for all that begin so, * for the whole \
                 query",
            ),
            Self::Limit => ("NAME=VALUE", "NAME=VALUE with a name of the table of limits"),
        }
    }
}

const PATHS: &str = "a path from its slash on, without ? and #, in normal form: without //, . and \
                     .. segments, a % that begins no escape, escapes of visible characters other \
                     than / \\ % ? # and ;, and lower-case hexadecimal digits in others";
const PASS_FIELDS: &str = "X-Real-Ip, X-Client-IP, Client-IP, True-Client-IP, CF-Connecting-IP, \
                           Fastly-Client-IP, X-Cluster-Client-IP, X-Host, X-HTTP-Host-Override, \
                           X-Scheme, X-Url-Scheme, X-Script-Name, Front-End-Https, \
                           X-Original-NAME, X-Rewrite-NAME, names that begin with X-Forward but \
                           for X-Forwarded-For, -Host and -Proto";

fn sizes(least: u64, most: u64) -> String {
    let [least, most] = [least, most].map(value::write_size);
    format!("bytes from {least} to {most}, with K, M, G or T for powers of 1024")
}
