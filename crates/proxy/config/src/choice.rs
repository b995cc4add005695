//! Options that take one of a few words, and what each word means.

use millrace_http_cache::SetCookie;

use super::value::Wrong;
use super::{
    Balance, CacheSend, EngineChoice, HostSent, LogFormat, PathForward, RetryOn, SendProxy, Splice,
};

/// The words of an option.
pub(super) struct Choice<T: 'static> {
    words: &'static [(&'static str, T)],
    /// What is wrong with any other text.
    wrong: Wrong,
}

impl<T: Copy + PartialEq> Choice<T> {
    /// What a word means.
    pub(super) fn read(&self, text: &str) -> Result<T, Wrong> {
        let found = self.words.iter().find(|(word, _)| *word == text);
        found.map(|(_, value)| *value).ok_or(self.wrong)
    }

    /// The word that [`Choice::read`] reads.
    pub(super) fn word(&self, value: T) -> &'static str {
        let found = self.words.iter().find(|(_, other)| *other == value);
        found.expect("each value has a word").0
    }
}

pub(super) const ENGINE: Choice<EngineChoice> = Choice {
    words: &[
        ("auto", EngineChoice::Auto),
        ("epoll", EngineChoice::Epoll),
        ("uring", EngineChoice::Uring),
        ("uselect", EngineChoice::Uselect),
        ("poll", EngineChoice::Poll),
        ("select", EngineChoice::Select),
    ],
    wrong: "is not an engine of this version",
};

pub(super) const SPLICE: Choice<Splice> = Choice {
    words: &[
        ("fixed", Splice::Fixed),
        ("calibrated", Splice::Calibrated),
        ("never", Splice::Never),
        ("always", Splice::Always),
    ],
    wrong: "is no way to choose",
};

/// Whether the process restricts itself.
pub(super) const SANDBOX: Choice<bool> =
    Choice { words: &[("auto", true), ("off", false)], wrong: "is neither auto nor off" };

/// Whether what is on disks is read again though it is in memory.
pub(super) const DISK_READS: Choice<bool> =
    Choice { words: &[("once", false), ("always", true)], wrong: "is neither once nor always" };

pub(super) const CACHE_SEND: Choice<CacheSend> = Choice {
    words: &[
        ("auto", CacheSend::Auto),
        ("copy", CacheSend::Copy),
        ("reference", CacheSend::Reference),
    ],
    wrong: "is no way to send what is stored",
};

pub(super) const LOG_FORMAT: Choice<LogFormat> = Choice {
    words: &[
        ("common", LogFormat::Common),
        ("combined", LogFormat::Combined),
        ("json", LogFormat::Json),
    ],
    wrong: "is not a form of the access log",
};

pub(super) const BALANCE: Choice<Balance> = Choice {
    words: &[
        ("round-robin", Balance::RoundRobin),
        ("least-outstanding", Balance::LeastOutstanding),
    ],
    wrong: "is not a way to balance",
};

pub(super) const HOST_SENT: Choice<HostSent> = Choice {
    words: &[("client", HostSent::Client), ("origin", HostSent::Origin)],
    wrong: "is not a choice of Host",
};

pub(super) const PATH_FORWARD: Choice<PathForward> = Choice {
    words: &[("as-sent", PathForward::AsSent), ("normalised", PathForward::Normalised)],
    wrong: "is not a form of the path",
};

pub(super) const SEND_PROXY: Choice<SendProxy> = Choice {
    words: &[("off", SendProxy::Off), ("v1", SendProxy::V1), ("v2", SendProxy::V2)],
    wrong: "is not a version of the PROXY protocol",
};

/// For what a request is sent to another origin; `None`: for nothing.
pub(super) const RETRY_ON: Choice<Option<RetryOn>> = Choice {
    words: &[
        ("malformed", Some(RetryOn::Malformed)),
        ("502", Some(RetryOn::Status(502))),
        ("503", Some(RetryOn::Status(503))),
        ("504", Some(RetryOn::Status(504))),
        ("off", None),
    ],
    wrong: "is nothing for which requests are retried",
};

/// Which answers with `Set-Cookie` are kept.
pub(super) const SET_COOKIE: Choice<SetCookie> = Choice {
    words: &[
        ("explicit", SetCookie::Explicit),
        ("shared", SetCookie::Shared),
        ("never", SetCookie::Never),
    ],
    wrong: "does not say which answers with cookies are kept",
};

#[cfg(test)]
mod tests {
    use crate::options::{Kind, Row};
    use crate::{from_arguments, from_toml, to_toml};

    #[test]
    fn every_word_of_a_row_is_read_and_written() {
        for row in Row::TABLE {
            let (Kind::Choice(words), Some(flag)) = (row.kind, row.flag) else { continue };
            for word in words {
                let option = format!("--{flag}={word}");
                let config =
                    from_arguments(["boost", "--origin=http://a", &option, "--access-log=-"]);
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
    fn off_stands_alone() {
        let retry_on = |value| from_arguments(["boost", "--origin=http://a", "--retry-on", value]);
        assert!(to_toml(&retry_on("malformed,503").unwrap()).contains("[\"malformed\", \"503\"]"));
        assert_eq!(
            retry_on("503,off").unwrap_err().to_string(),
            "--retry-on: off is given with other values (expected: off alone)"
        );
    }
}
