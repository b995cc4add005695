//! Hashes of passwords as programs for users' files write them.

use std::fmt;

use sha_crypt::{Params, PasswordHash as Crypt, PasswordVerifier, ShaCrypt};

/// The hash of one user's password: slow to compare with, on purpose.
#[derive(PartialEq, Eq)]
pub struct PasswordHash {
    kind: HashCost,
    /// In the modular crypt format, as it stood in the file; checked.
    text: String,
}

/// Which function, and how often it is repeated: what its time depends on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum HashCost {
    /// SHA-512 crypt, with its rounds.
    Sha512(u32),
    /// bcrypt, with the logarithm of its rounds.
    Bcrypt(u32),
}

impl PasswordHash {
    /// Reads a hash of bcrypt (`$2y$`, `$2b$`, `$2a$`) or SHA-512 crypt (`$6$`).
    ///
    /// # Errors
    /// What is wrong with it. The message never repeats the text.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let kind = match text.get(..4) {
            Some("$2y$" | "$2b$" | "$2a$") => bcrypt_kind(text)?,
            _ if text.starts_with("$6$") => sha512_kind(text)?,
            _ => return Err("is no hash of a known kind"),
        };
        Ok(Self { kind, text: text.to_owned() })
    }

    /// The hash as it stood in the file.
    pub fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn kind(&self) -> HashCost {
        self.kind
    }

    /// Whether it is the hash of `password`. Takes a tenth of a second, or longer: never called on
    /// a worker. The comparison itself takes the same time whatever differs.
    pub fn is_of(&self, password: &[u8]) -> bool {
        match self.kind {
            HashCost::Bcrypt(_) => bcrypt::verify(password, &self.text).unwrap_or(false),
            HashCost::Sha512(_) => Crypt::new(self.text.as_str())
                .is_ok_and(|hash| ShaCrypt::default().verify_password(password, &hash).is_ok()),
        }
    }
}

/// A hash can be attacked by whoever reads it: it is shown to nobody.
impl fmt::Debug for PasswordHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PasswordHash({:?})", self.kind)
    }
}

fn bcrypt_kind(text: &str) -> Result<HashCost, &'static str> {
    let parts: bcrypt::HashParts = text.parse().map_err(|_| "is a malformed hash of bcrypt")?;
    match parts.get_cost() {
        4..=BCRYPT_COST_MAX => Ok(HashCost::Bcrypt(parts.get_cost())),
        _ => Err("is a hash of bcrypt whose cost is not from 4 to 15"),
    }
}

/// `$6$[rounds=N$]SALT$HASH`
fn sha512_kind(text: &str) -> Result<HashCost, &'static str> {
    const MALFORMED: &str = "is a malformed hash of SHA-512 crypt";
    let mut parts = text.split('$').skip(2).peekable();
    let rounds = match parts.next_if(|part| part.starts_with("rounds=")) {
        None => Params::RECOMMENDED_ROUNDS,
        Some(part) => part["rounds=".len()..].parse().map_err(|_| MALFORMED)?,
    };
    let sane = |part: &str, length: std::ops::RangeInclusive<usize>| {
        let digit = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'.' || byte == b'/';
        length.contains(&part.len()) && part.bytes().all(digit)
    };
    let (salt, hash) = (parts.next().ok_or(MALFORMED)?, parts.next().ok_or(MALFORMED)?);
    if !sane(salt, 1..=16) || !sane(hash, 86..=86) || parts.next().is_some() {
        return Err(MALFORMED);
    }
    match rounds {
        Params::ROUNDS_MIN..=SHA512_ROUNDS_MAX => Ok(HashCost::Sha512(rounds)),
        _ => Err("is a hash of SHA-512 crypt whose rounds are not from 1000 to 1000000"),
    }
}

/// A comparison at either bound takes about two seconds of one processor. Beyond them a file's
/// single line would keep every other user waiting.
const BCRYPT_COST_MAX: u32 = 15;
const SHA512_ROUNDS_MAX: u32 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    /// Written by `openssl passwd -6` and by `htpasswd -nbB`, with its other prefixes.
    const OPENSSL: &str = "$6$saltstring$svn8UoSVapNtMuq1ukKS4tPQd8iKwSMHWjl/O817G3uB\
                           nIFNjnQJuesI68u4OTLiBFdcbYEdFCoEOfaS35inz1";

    #[test]
    fn hashes_of_other_programs_are_read_and_compared() {
        let hash = PasswordHash::parse(OPENSSL).unwrap();
        assert_eq!(hash.kind(), HashCost::Sha512(5000));
        assert!(hash.is_of(b"Hello world!") && !hash.is_of(b"Hello world"));
        let bare = bcrypt::hash_with_salt("secret", 4, [7; 16]).unwrap();
        for version in [bcrypt::Version::TwoY, bcrypt::Version::TwoB, bcrypt::Version::TwoA] {
            let hash = PasswordHash::parse(&bare.format_for_version(version)).unwrap();
            assert_eq!(hash.kind(), HashCost::Bcrypt(4));
            assert!(hash.is_of(b"secret") && !hash.is_of(b"Secret") && !hash.is_of(b""));
            assert!(!format!("{hash:?}").contains('$'));
        }
    }

    #[test]
    fn what_is_weak_slow_or_malformed_is_refused() {
        let long = OPENSSL.replace("$6$", "$6$rounds=1000001$");
        let few = OPENSSL.replace("$6$", "$6$rounds=999$");
        for text in [
            "",
            "secret",
            "$apr1$x$y",
            "{SHA}2jmj7l5rSw0yVb/vlWAYkK/YBwk=",
            "$1$abcdefgh$1234567890123456789012",
            "$2x$04$abcdefghijklmnopqrstuuABCDEFGHIJKLMNOPQRSTUVWXYZ01234",
            "$2y$31$abcdefghijklmnopqrstuuABCDEFGHIJKLMNOPQRSTUVWXYZ01234",
            "$2y$10$short",
            "$6$salt",
            "$6$$x",
            &OPENSSL[..OPENSSL.len() - 1],
            &long,
            &few,
        ] {
            let problem = PasswordHash::parse(text).unwrap_err();
            assert!(text.is_empty() || !problem.contains(text), "{problem}");
        }
    }
}
