//! The file of users, with their password hashes and tokens.

use std::collections::HashMap;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::error::ConfigError;
use super::hash::PasswordHash;

/// The largest file of users that is read, in bytes: about a hundred thousand lines.
pub const USERS_BYTES_MAX: usize = 8 << 20;
/// The longest name in bytes, so that a line of the access log stays short.
const NAME_BYTES_MAX: usize = 255;

/// The users of a service. Passwords have slow hashes; tokens, which are random and long, have
/// SHA-256 digests.
///
/// ```text
/// # Comments and blank lines are skipped.
/// alice:$2y$10$...            htpasswd -nbB alice PASSWORD
/// bob:$6$...                  openssl passwd -6
/// build:token:9f86d081...     the SHA-256 of a token, in hexadecimal digits
/// ```
///
/// A user has at most one password and any number of tokens.
pub struct Users {
    passwords: HashMap<Box<[u8]>, Account>,
    tokens: HashMap<[u8; 32], Arc<[u8]>>,
    /// A hash whose verification takes as long as that of most users.
    decoy: Option<Arc<PasswordHash>>,
    /// The SHA-256 digest of the file. Credentials that were verified with another file are not
    /// valid.
    identity: [u8; 32],
}

/// A user with a password.
#[derive(Clone)]
pub struct Account {
    /// The name, as in the access log.
    pub name: Arc<[u8]>,
    /// The hash of the password.
    pub hash: Arc<PasswordHash>,
}

impl Users {
    /// Parses the text of a file. Messages call the file `name`.
    ///
    /// # Errors
    /// Returns the number and the problem of the first invalid line, without any part of the line.
    pub fn parse(name: &str, text: &str) -> Result<Self, ConfigError> {
        let mut users = Self {
            passwords: HashMap::new(),
            tokens: HashMap::new(),
            decoy: None,
            identity: Sha256::digest(text.as_bytes()).into(),
        };
        for (index, line) in text.lines().enumerate() {
            let line = line.trim_end();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            users.line(line).map_err(|problem| {
                let expected = "NAME:HASH as written by htpasswd -B or openssl passwd -6, or \
                               NAME:token:SHA256, each once";
                ConfigError::rule(format!("{name}:{}", index + 1), problem, expected)
            })?;
        }
        users.decoy = users.most_common_hash();
        Ok(users)
    }

    fn line(&mut self, line: &str) -> Result<(), &'static str> {
        let (name, proof) = line.split_once(':').ok_or("has no colon")?;
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return Err("has a name that is empty or longer than 255 bytes");
        }
        if name.trim() != name || name.chars().any(char::is_control) {
            return Err("has a name with control characters, or with blanks around it");
        }
        let name: Arc<[u8]> = name.as_bytes().into();
        if let Some(digits) = proof.strip_prefix("token:") {
            let digest = digest(digits).ok_or("has no SHA-256 of 64 hexadecimal digits")?;
            return match self.tokens.insert(digest, name) {
                None => Ok(()),
                Some(_) => Err("has a token that an earlier line has"),
            };
        }
        let hash = Arc::new(PasswordHash::parse(proof)?);
        match self.passwords.insert(name.as_ref().into(), Account { name, hash }) {
            None => Ok(()),
            Some(_) => Err("has a user that an earlier line has"),
        }
    }

    /// Returns a hash with the most common cost; the higher one among equals.
    fn most_common_hash(&self) -> Option<Arc<PasswordHash>> {
        let mut counts = HashMap::new();
        for user in self.passwords.values() {
            *counts.entry(user.hash.cost()).or_insert(0u32) += 1;
        }
        let (cost, _) = counts.into_iter().max_by_key(|&(cost, count)| (count, cost))?;
        let user = self.passwords.values().find(|user| user.hash.cost() == cost)?;
        Some(user.hash.clone())
    }

    /// Returns the user of this name; `None` if there is none with a password.
    pub fn find(&self, name: &[u8]) -> Option<&Account> {
        self.passwords.get(name)
    }

    /// Returns a hash to verify if a user does not exist, so that the time does not reveal it.
    /// `None` if no user has a password.
    pub fn decoy(&self) -> Option<&Arc<PasswordHash>> {
        self.decoy.as_ref()
    }

    /// Returns the user with this token. An attacker cannot choose the digest of a guess, so the
    /// time of the lookup reveals nothing about the tokens.
    pub fn owner(&self, token: &[u8]) -> Option<&Arc<[u8]>> {
        self.tokens.get(&<[u8; 32]>::from(Sha256::digest(token)))
    }

    /// Returns whether any user has a token.
    pub fn has_tokens(&self) -> bool {
        !self.tokens.is_empty()
    }

    /// Returns the SHA-256 digest of the file.
    pub fn identity(&self) -> &[u8; 32] {
        &self.identity
    }
}

impl PartialEq for Users {
    fn eq(&self, other: &Self) -> bool {
        self.identity == other.identity
    }
}

impl Eq for Users {}

/// Omits names and hashes.
impl std::fmt::Debug for Users {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Users({} passwords, {} tokens)", self.passwords.len(), self.tokens.len())
    }
}

fn digest(digits: &str) -> Option<[u8; 32]> {
    let mut digest = [0; 32];
    if digits.len() != 2 * digest.len() || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (byte, offset) in digest.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(&digits[offset..offset + 2], 16).ok()?;
    }
    Some(digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

    fn hash(cost: u32) -> String {
        bcrypt::hash_with_salt("secret", cost, [1; 16])
            .unwrap()
            .format_for_version(bcrypt::Version::TwoY)
    }

    #[test]
    fn users_have_a_password_and_tokens() {
        let (cheap, expensive) = (hash(4), hash(5));
        let text = format!("# users\n\nalice:{cheap}\r\nbob: x\n");
        assert!(Users::parse("users", &text).unwrap_err().to_string().starts_with("users:4: "));
        let text = format!(
            "# users\n\nalice:{cheap}\r\nb b:{cheap}\nc:{expensive}\nalice:token:{TOKEN}\n"
        );
        let users = Users::parse("users", &text).unwrap();
        assert!(users.find(b"alice").unwrap().hash.is_of(b"secret"));
        assert!(users.find(b"b b").is_some() && users.find(b"Alice").is_none());
        assert_eq!(users.owner(b"test").map(|name| &name[..]), Some(&b"alice"[..]));
        assert!(users.owner(b"Test").is_none() && users.has_tokens());
        assert_eq!(users.decoy().unwrap().cost(), users.find(b"alice").unwrap().hash.cost());
        assert_eq!(users, Users::parse("other", &text).unwrap());
        assert_ne!(users, Users::parse("users", &format!("{text}#")).unwrap());
        assert!(!format!("{users:?}").contains("alice"));
    }

    #[test]
    fn wrong_lines_are_named_by_their_number_and_not_repeated() {
        let good = hash(4);
        for line in [
            "secret-line",
            ":$6$x",
            "secret:plain-secret",
            "a\tb:token:x",
            " secret:token:x",
            "secret:token:12",
            &format!("secret:token:{}", TOKEN.replace('9', "g")),
            &format!("{}:{good}", "secret".repeat(50)),
            &format!("secret:{good}\nsecret:{good}"),
            &format!("secret:token:{TOKEN}\nb:token:{TOKEN}"),
        ] {
            let message = Users::parse("u", &format!("#\n{line}\n")).unwrap_err().to_string();
            assert!(message.starts_with("u:2: ") || message.starts_with("u:3: "), "{message}");
            assert!(!message.contains("secret") && !message.contains("$2"), "{message}");
        }
    }
}
