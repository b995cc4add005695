//! The connection-specific fields `Connection` and `Upgrade`.

use crate::byte_class::is_token;
use crate::comma_list::{MemberBound, split_members, split_tokens};
use crate::error::HeadError;
use crate::field::FieldLine;
use crate::limits::{CONNECTION_OPTIONS_MAX, EMPTY_MEMBERS_MAX, UPGRADE_PROTOCOLS_MAX};
use crate::method::Version;
use crate::name::FieldName;

/// The options in the `Connection` fields of a header (RFC 9110 section 7.6.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ConnectionOptions {
    /// Whether `close` is present.
    pub close: bool,
    /// Whether `keep-alive` is present.
    pub keep_alive: bool,
    /// Whether `upgrade` is present, so that the `Upgrade` field applies.
    pub upgrade: bool,
    /// Whether `te` is present, so that the `TE` field applies.
    pub te: bool,
    /// Whether other options are present. They may name fields that have to be removed.
    pub others: bool,
}

impl ConnectionOptions {
    /// Returns whether the sender keeps the connection open after this message (RFC 9112 section
    /// 9.3). `version` is that of the message.
    pub fn is_persistent(self, version: Version) -> bool {
        !self.close && (version == Version::Http11 || self.keep_alive)
    }

    /// Parses the values of all `Connection` fields of a complete header.
    pub(crate) fn parse<'a>(values: impl Iterator<Item = &'a [u8]>) -> Result<Self, HeadError> {
        let mut options = Self::default();
        let mut bound = MemberBound { left: CONNECTION_OPTIONS_MAX, left_empty: EMPTY_MEMBERS_MAX };
        for value in values {
            for option in split_members(value) {
                bound.count(option).ok_or(HeadError::ConnectionOptionsTooMany)?;
                let is = |name: &str| option.eq_ignore_ascii_case(name.as_bytes());
                match option.len() {
                    5 if is("close") => options.close = true,
                    10 if is("keep-alive") => options.keep_alive = true,
                    7 if is("upgrade") => options.upgrade = true,
                    2 if is("te") => options.te = true,
                    0 => {}
                    _ => options.others = true,
                }
            }
        }
        Ok(options)
    }
}

/// Sets [`FieldLine::is_nominated`] for the unknown fields that `Connection` names. `fields` are
/// ranges of `bytes`. [`ConnectionOptions::parse`] has bounded the number of options.
#[cold]
pub(crate) fn mark_nominated(bytes: &[u8], fields: &mut [FieldLine]) {
    let mut names: [&[u8]; CONNECTION_OPTIONS_MAX] = Default::default();
    let connection = fields.iter().filter(|field| field.known == FieldName::Connection);
    let options = connection.flat_map(|field| split_tokens(field.value.slice(bytes)));
    let count = names.iter_mut().zip(options).map(|(name, option)| *name = option).count();
    for field in fields.iter_mut().filter(|field| field.known == FieldName::Other) {
        let name = field.name.slice(bytes);
        field.is_nominated = names[..count].iter().any(|option| option.eq_ignore_ascii_case(name));
    }
}

/// Returns whether all protocols in the `Upgrade` fields of a complete header are well-formed.
pub(crate) fn check_upgrade_protocols<'a>(
    values: impl Iterator<Item = &'a [u8]>,
) -> Result<bool, HeadError> {
    let mut are_valid = true;
    let mut bound = MemberBound { left: UPGRADE_PROTOCOLS_MAX, left_empty: EMPTY_MEMBERS_MAX };
    for protocol in values.flat_map(split_members) {
        bound.count(protocol).ok_or(HeadError::UpgradeProtocolsTooMany)?;
        are_valid &= protocol.is_empty() || is_protocol(protocol);
    }
    Ok(are_valid)
}

fn is_protocol(bytes: &[u8]) -> bool {
    let mut parts = bytes.splitn(2, |&byte| byte == b'/');
    parts.all(is_token)
}
