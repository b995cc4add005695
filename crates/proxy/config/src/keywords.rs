//! Options whose values are keywords, with the value of each keyword.

use millrace_files::CompressionLevel;
use millrace_http_cache::SetCookie;
use millrace_tls::{ClientCertificateMode, UnknownName, Versions};

use super::value::Problem;
use super::{
    Balance, CacheSend, EngineChoice, HostHeader, LogFormat, PathForward, RetryOn, SendProxy,
    Splice, SymlinkRule,
};

/// The keywords of an option.
pub(super) struct Keywords<T: 'static> {
    words: &'static [(&'static str, T)],
    /// The error text for a value that is none of the keywords.
    problem: Problem,
}

impl<T: Copy + PartialEq> Keywords<T> {
    /// Parses a keyword.
    pub(super) fn parse(&self, text: &str) -> Result<T, Problem> {
        let found = self.words.iter().find(|(word, _)| *word == text);
        found.map(|(_, value)| *value).ok_or(self.problem)
    }

    /// Returns the keyword of a value.
    pub(super) fn name(&self, value: T) -> &'static str {
        let found = self.words.iter().find(|(_, other)| *other == value);
        found.expect("each value has a keyword").0
    }
}

pub(super) const ENGINE: Keywords<EngineChoice> = Keywords {
    words: &[
        ("auto", EngineChoice::Auto),
        ("epoll", EngineChoice::Epoll),
        ("uring", EngineChoice::Uring),
        ("uselect", EngineChoice::Uselect),
        ("poll", EngineChoice::Poll),
        ("select", EngineChoice::Select),
    ],
    problem: "is not an engine",
};

pub(super) const SPLICE: Keywords<Splice> = Keywords {
    words: &[
        ("fixed", Splice::Fixed),
        ("calibrated", Splice::Calibrated),
        ("never", Splice::Never),
        ("always", Splice::Always),
    ],
    problem: "is not a way to choose",
};

/// Whether the process is in a sandbox.
pub(super) const SANDBOX: Keywords<bool> =
    Keywords { words: &[("auto", true), ("off", false)], problem: "is neither auto nor off" };

/// Whether responses are read from disk although memory has them.
pub(super) const DISK_READS: Keywords<bool> = Keywords {
    words: &[("on-miss", false), ("always", true)],
    problem: "is neither on-miss nor always",
};

pub(super) const TLS_VERSIONS: Keywords<Versions> = Keywords {
    words: &[("1.2-1.3", Versions::From12), ("1.3", Versions::Only13), ("1.2", Versions::Only12)],
    problem: "is no choice of versions",
};

pub(super) const UNKNOWN_NAME: Keywords<UnknownName> = Keywords {
    words: &[("first", UnknownName::First), ("refuse", UnknownName::Refuse)],
    problem: "is no treatment of unknown names",
};

/// How certificates are requested from clients; `None` if they are not.
pub(super) const CLIENT_CERTIFICATE: Keywords<Option<ClientCertificateMode>> = Keywords {
    words: &[
        ("off", None),
        ("optional", Some(ClientCertificateMode::Optional)),
        ("required", Some(ClientCertificateMode::Required)),
    ],
    problem: "is none of off, optional and required",
};

pub(super) const CACHE_SEND: Keywords<CacheSend> = Keywords {
    words: &[
        ("auto", CacheSend::Auto),
        ("copy", CacheSend::Copy),
        ("zero-copy", CacheSend::ZeroCopy),
    ],
    problem: "is not a way to send a body",
};

pub(super) const LOG_FORMAT: Keywords<LogFormat> = Keywords {
    words: &[
        ("common", LogFormat::Common),
        ("combined", LogFormat::Combined),
        ("json", LogFormat::Json),
    ],
    problem: "is not a format of the access log",
};

pub(super) const BALANCE: Keywords<Balance> = Keywords {
    words: &[
        ("round-robin", Balance::RoundRobin),
        ("least-outstanding", Balance::LeastOutstanding),
    ],
    problem: "is not a way to balance",
};

pub(super) const HOST_SENT: Keywords<HostHeader> = Keywords {
    words: &[("client", HostHeader::Client), ("origin", HostHeader::Origin)],
    problem: "is neither client nor origin",
};

pub(super) const PATH_FORWARD: Keywords<PathForward> = Keywords {
    words: &[("as-sent", PathForward::AsSent), ("normalised", PathForward::Normalised)],
    problem: "is not a form of the path",
};

pub(super) const SEND_PROXY: Keywords<SendProxy> = Keywords {
    words: &[("off", SendProxy::Off), ("v1", SendProxy::V1), ("v2", SendProxy::V2)],
    problem: "is not a version of the PROXY protocol",
};

/// The responses after which a request is retried; `None` for none.
pub(super) const RETRY_ON: Keywords<Option<RetryOn>> = Keywords {
    words: &[
        ("malformed", Some(RetryOn::Malformed)),
        ("502", Some(RetryOn::Status(502))),
        ("503", Some(RetryOn::Status(503))),
        ("504", Some(RetryOn::Status(504))),
        ("off", None),
    ],
    problem: "is not a reason for a retry",
};

/// Which responses with `Set-Cookie` are stored.
pub(super) const SET_COOKIE: Keywords<SetCookie> = Keywords {
    words: &[
        ("explicit", SetCookie::Explicit),
        ("shared", SetCookie::Shared),
        ("never", SetCookie::Never),
    ],
    problem: "is not a rule for cookies",
};

pub(super) const SYMLINKS: Keywords<SymlinkRule> = Keywords {
    words: &[("inside", SymlinkRule::Inside), ("none", SymlinkRule::None)],
    problem: "is neither inside nor none",
};

/// The responses of a route that are compressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Compressed {
    /// None.
    Off,
    /// The files of a folder.
    Files,
    /// All.
    On,
}

pub(super) const COMPRESSED: Keywords<Compressed> = Keywords {
    words: &[("files", Compressed::Files), ("on", Compressed::On), ("off", Compressed::Off)],
    problem: "is neither files nor on nor off",
};

pub(super) const COMPRESSION_LEVELS: Keywords<CompressionLevel> = Keywords {
    words: &[
        ("default", CompressionLevel::Default),
        ("fast", CompressionLevel::Fast),
        ("best", CompressionLevel::Best),
    ],
    problem: "is not a level",
};

#[cfg(test)]
mod tests {
    use crate::options::{Group, OptionRow, Scope, ValueType};
    use crate::{from_arguments, from_toml, to_toml};

    #[test]
    fn every_keyword_of_a_row_is_parsed_and_written() {
        for row in OptionRow::TABLE {
            let (ValueType::Keyword(words), Some(flag)) = (row.value_type, row.flag) else {
                continue;
            };
            for word in words {
                let option = format!("--{flag}={word}");
                let service = match row.scope {
                    Scope::Folder => ["serve", "/srv"],
                    _ if row.key.starts_with("compress") => ["serve", "/srv"],
                    _ => ["boost", "--origin=http://a"],
                };
                let mut words = [&service[..], &[option.as_str(), "--access-log=-"]].concat();
                if row.group == Group::Tls {
                    words.extend(["--listen=tls://[::1]:1", "--certificate=a", "--key=b"]);
                }
                if row.key == "client-certificate" && *word != "off" {
                    words.push("--client-ca=c");
                }
                let config = from_arguments(words);
                let written = to_toml(&config.unwrap());
                let value = format!("\"{word}\"");
                let value = if row.values_max > 1 { format!("[{value}]") } else { value };
                let line = format!("{} = {value}", row.key);
                assert!(written.lines().any(|written| written == line), "{line}: {written}");
                assert!(from_toml(&written).is_ok());
            }
        }
    }

    #[test]
    fn off_cannot_be_combined() {
        let retry_on = |value| from_arguments(["boost", "--origin=http://a", "--retry-on", value]);
        assert!(to_toml(&retry_on("malformed,503").unwrap()).contains("[\"malformed\", \"503\"]"));
        assert_eq!(
            retry_on("503,off").unwrap_err().to_string(),
            "--retry-on: off is combined with other values (expected: off alone)"
        );
    }
}
