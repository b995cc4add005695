//! What a client sends to say who it is: the value of Proxy-Authorization.

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

/// What was sent.
#[derive(PartialEq, Eq)]
pub(super) enum Credentials {
    /// RFC 7617.
    Basic {
        /// Without a colon.
        name: Vec<u8>,
        password: Vec<u8>,
    },
    /// RFC 6750.
    Bearer(Vec<u8>),
}

/// The longest password that is compared: the time that SHA-512 crypt takes grows with its square.
const PASSWORD_BYTES_MAX: usize = 256;

/// Padding may be left out: clients do (RFC 7617 shows none that does, RFC 4648 section 3.2 lets a
/// reader accept it). What is decoded is only ever compared, so two texts for one password are one
/// user.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

impl Credentials {
    /// Reads a value. `None`: another scheme, or malformed.
    pub(super) fn parse(value: &[u8]) -> Option<Self> {
        let space = value.iter().position(|&byte| byte == b' ')?;
        let (scheme, rest) = (&value[..space], value[space..].trim_ascii());
        if scheme.eq_ignore_ascii_case(b"bearer") {
            let is_token = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(byte);
            let is_whole = !rest.is_empty() && rest.iter().all(is_token);
            return is_whole.then(|| Self::Bearer(rest.to_vec()));
        }
        if !scheme.eq_ignore_ascii_case(b"basic") {
            return None;
        }
        let mut name = BASE64.decode(rest).ok()?;
        // RFC 7617 section 2. bcrypt takes a zero for the end of a password that begins again, so
        // that `secret\0secret` would be `secret`.
        if name.iter().any(u8::is_ascii_control) {
            return None;
        }
        let colon = name.iter().position(|&byte| byte == b':')?;
        let password = name.split_off(colon + 1);
        name.pop();
        (password.len() <= PASSWORD_BYTES_MAX).then_some(Self::Basic { name, password })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_schemes_are_read_in_any_case_and_nothing_else_is() {
        let basic = |name: &str, password: &str| {
            Some(Credentials::Basic { name: name.into(), password: password.into() })
        };
        let is = |value: &str, wanted: Option<Credentials>| {
            assert!(Credentials::parse(value.as_bytes()) == wanted, "{value}");
        };
        is("Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==", basic("Aladdin", "open sesame"));
        is("bASIC  QWxhZGRpbjpvcGVuIHNlc2FtZQ", basic("Aladdin", "open sesame"));
        is("Basic dGVzdDoxMjPCow==", basic("test", "123\u{a3}"));
        is("Basic YTpiOmM=", basic("a", "b:c"));
        is("Basic Og==", basic("", ""));
        is("Bearer a.b-c_d~e+f/g==", Some(Credentials::Bearer(b"a.b-c_d~e+f/g==".to_vec())));
        for value in [
            "",
            "Basic",
            "Basic ",
            "Basic !",
            "Basic YWJj",
            "Digest a=b",
            "Bearer ",
            "Bearer a b",
            "BasicYTpi",
            "Bearer \u{e9}",
        ] {
            is(value, None);
        }
        for secret in ["a:b\0b", "a\n:b", "a:b\x7f"] {
            is(&format!("Basic {}", BASE64.encode(secret)), None);
        }
        let long = BASE64.encode(format!("a:{}", "x".repeat(257)));
        is(&format!("Basic {long}"), None);
    }
}
