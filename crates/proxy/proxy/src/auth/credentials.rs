//! Parses the credentials of a client: the value of Proxy-Authorization.

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

/// The credentials of a client.
#[derive(PartialEq, Eq)]
pub(super) enum Credentials {
    /// A name and a password (RFC 7617).
    Basic {
        /// The user name, which contains no colon.
        name: Vec<u8>,
        password: Vec<u8>,
    },
    /// A token (RFC 6750).
    Bearer(Vec<u8>),
}

/// The longest password that is verified, in bytes. The time of SHA-512 crypt grows with the square
/// of the length.
const PASSWORD_BYTES_MAX: usize = 256;

/// The padding is optional, because some clients omit it. RFC 7617 shows no value without padding,
/// but RFC 4648 section 3.2 allows a decoder to accept one. Two encodings of one password are
/// harmless, because the decoded bytes are only compared.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

impl Credentials {
    /// Parses a value. Returns `None` if it has another scheme or is malformed.
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
        // RFC 7617 section 2 forbids control characters. Moreover, bcrypt hashes repetitions of the
        // password and a zero byte, so that `secret\0secret` would match `secret`.
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
        let check = |value: &str, wanted: Option<Credentials>| {
            assert!(Credentials::parse(value.as_bytes()) == wanted, "{value}");
        };
        check("Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==", basic("Aladdin", "open sesame"));
        check("bASIC  QWxhZGRpbjpvcGVuIHNlc2FtZQ", basic("Aladdin", "open sesame"));
        check("Basic dGVzdDoxMjPCow==", basic("test", "123\u{a3}"));
        check("Basic YTpiOmM=", basic("a", "b:c"));
        check("Basic Og==", basic("", ""));
        check("Bearer a.b-c_d~e+f/g==", Some(Credentials::Bearer(b"a.b-c_d~e+f/g==".to_vec())));
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
            check(value, None);
        }
        for secret in ["a:b\0b", "a\n:b", "a:b\x7f"] {
            check(&format!("Basic {}", BASE64.encode(secret)), None);
        }
        let long = BASE64.encode(format!("a:{}", "x".repeat(257)));
        check(&format!("Basic {long}"), None);
    }
}
