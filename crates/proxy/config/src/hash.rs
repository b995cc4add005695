//! Hashes of passwords in the formats of htpasswd(1) and openssl-passwd(1).

use std::fmt;

use sha_crypt::{Params, PasswordHash as Crypt, PasswordVerifier, ShaCrypt};

/// The hash of a password. Verification is slow on purpose.
#[derive(PartialEq, Eq)]
pub struct PasswordHash {
    cost: HashCost,
    /// The hash in modular crypt format, as in the file; its syntax is checked.
    text: String,
}

/// The function and the number of its rounds, which determine the time of a verification.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum HashCost {
    /// SHA-512 crypt, with the number of rounds.
    Sha512(u32),
    /// bcrypt, with the binary logarithm of the number of rounds.
    Bcrypt(u32),
}

impl PasswordHash {
    /// Parses a hash of bcrypt (`$2y$`, `$2b$`, `$2a$`) or SHA-512 crypt (`$6$`).
    ///
    /// # Errors
    /// Returns the problem of the text, without any part of the text.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let cost = match text.get(..4) {
            Some("$2y$" | "$2b$" | "$2a$") => bcrypt_cost(text)?,
            _ if text.starts_with("$6$") => sha512_cost(text)?,
            _ => return Err("is not a hash of bcrypt or SHA-512 crypt"),
        };
        Ok(Self { cost, text: text.to_owned() })
    }

    /// Returns the hash as in the file.
    pub fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn cost(&self) -> HashCost {
        self.cost
    }

    /// Returns whether this is the hash of `password`. Takes a tenth of a second or longer, so
    /// workers never call it. The time does not depend on the position of a difference.
    pub fn is_of(&self, password: &[u8]) -> bool {
        match self.cost {
            HashCost::Bcrypt(_) => bcrypt::verify(password, &self.text).unwrap_or(false),
            HashCost::Sha512(_) => Crypt::new(self.text.as_str())
                .is_ok_and(|hash| ShaCrypt::default().verify_password(password, &hash).is_ok()),
        }
    }
}

/// Omits the hash, which could be attacked by a reader of the output.
impl fmt::Debug for PasswordHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PasswordHash({:?})", self.cost)
    }
}

fn bcrypt_cost(text: &str) -> Result<HashCost, &'static str> {
    let parts: bcrypt::HashParts = text.parse().map_err(|_| "is a malformed hash of bcrypt")?;
    match parts.get_cost() {
        4..=BCRYPT_COST_MAX => Ok(HashCost::Bcrypt(parts.get_cost())),
        _ => Err("is a hash of bcrypt whose cost is not from 4 to 15"),
    }
}

/// Checks `$6$[rounds=N$]SALT$HASH`.
fn sha512_cost(text: &str) -> Result<HashCost, &'static str> {
    const MALFORMED: &str = "is a malformed hash of SHA-512 crypt";
    let mut parts = text.split('$').skip(2).peekable();
    let rounds = match parts.next_if(|part| part.starts_with("rounds=")) {
        None => Params::RECOMMENDED_ROUNDS,
        Some(part) => part["rounds=".len()..].parse().map_err(|_| MALFORMED)?,
    };
    let is_valid = |part: &str, length: std::ops::RangeInclusive<usize>| {
        let digit = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'.' || byte == b'/';
        length.contains(&part.len()) && part.bytes().all(digit)
    };
    let (salt, hash) = (parts.next().ok_or(MALFORMED)?, parts.next().ok_or(MALFORMED)?);
    if !is_valid(salt, 1..=16) || !is_valid(hash, 86..=86) || parts.next().is_some() {
        return Err(MALFORMED);
    }
    match rounds {
        Params::ROUNDS_MIN..=SHA512_ROUNDS_MAX => Ok(HashCost::Sha512(rounds)),
        _ => Err("is a hash of SHA-512 crypt whose rounds are not from 1000 to 1000000"),
    }
}

/// The highest cost of bcrypt. A verification at this bound takes about two seconds of one
/// processor; above it, a single line of a file would delay all other users.
const BCRYPT_COST_MAX: u32 = 15;
/// The most rounds of SHA-512 crypt. A verification at this bound takes about as long as one at
/// [`BCRYPT_COST_MAX`], and the bound has the same reason.
const SHA512_ROUNDS_MAX: u32 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    /// Written by `openssl passwd -6`.
    const OPENSSL: &str = "$6$saltstring$svn8UoSVapNtMuq1ukKS4tPQd8iKwSMHWjl/O817G3uB\
                           nIFNjnQJuesI68u4OTLiBFdcbYEdFCoEOfaS35inz1";

    #[test]
    fn hashes_of_other_programs_are_verified() {
        let hash = PasswordHash::parse(OPENSSL).unwrap();
        assert_eq!(hash.cost(), HashCost::Sha512(5000));
        assert!(hash.is_of(b"Hello world!") && !hash.is_of(b"Hello world"));
        let bare = bcrypt::hash_with_salt("secret", 4, [7; 16]).unwrap();
        for version in [bcrypt::Version::TwoY, bcrypt::Version::TwoB, bcrypt::Version::TwoA] {
            let hash = PasswordHash::parse(&bare.format_for_version(version)).unwrap();
            assert_eq!(hash.cost(), HashCost::Bcrypt(4));
            assert!(hash.is_of(b"secret") && !hash.is_of(b"Secret") && !hash.is_of(b""));
            assert!(!format!("{hash:?}").contains('$'));
        }
    }

    #[test]
    fn weak_slow_and_malformed_hashes_are_refused() {
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
