//! The file of users: who they are, and what proves it.

use std::collections::HashMap;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::error::ConfigError;
use super::hash::PasswordHash;

/// The longest file of users that is read: a hundred thousand lines.
pub const USERS_BYTES_MAX: usize = 8 << 20;
/// The longest name; of a line of the access log it is only a part.
const NAME_BYTES_MAX: usize = 255;

/// The users of a service. Passwords are there as slow hashes; tokens, which are random and long,
/// as SHA-256.
///
/// ```text
/// # Comments and blank lines are skipped.
/// alice:$2y$10$...            htpasswd -nbB alice PASSWORD
/// bob:$6$...                  openssl passwd -6
/// build:token:9f86d081...     the SHA-256 of a token, in hexadecimal digits
/// ```
///
/// A user has at most one password, and as many tokens as there are lines for them.
pub struct Users {
    passwords: HashMap<Box<[u8]>, Account>,
    tokens: HashMap<[u8; 32], Arc<[u8]>>,
    /// A hash that takes as long as those of most users.
    decoy: Option<Arc<PasswordHash>>,
    /// SHA-256 of the file: whoever was known by another file has to be asked again.
    identity: [u8; 32],
}

/// Who has a password.
#[derive(Clone)]
pub struct Account {
    /// What the log calls him.
    pub name: Arc<[u8]>,
    /// What his password is compared with.
    pub hash: Arc<PasswordHash>,
}

impl Users {
    /// Reads the text of the file that messages call `name`.
    ///
    /// # Errors
    /// The first line that is wrong, by its number. No message repeats anything of a line.
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
                let expected = "NAME:HASH as by htpasswd -B or openssl passwd -6, or \
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
            return Err("has a name with control characters, or blanks around it");
        }
        let name: Arc<[u8]> = name.as_bytes().into();
        if let Some(digits) = proof.strip_prefix("token:") {
            let digest = digest(digits).ok_or("has no SHA-256 of 64 hexadecimal digits")?;
            return match self.tokens.insert(digest, name) {
                None => Ok(()),
                Some(_) => Err("has a token that stands here twice"),
            };
        }
        let hash = Arc::new(PasswordHash::parse(proof)?);
        match self.passwords.insert(name.as_ref().into(), Account { name, hash }) {
            None => Ok(()),
            Some(_) => Err("has a user who has a password already"),
        }
    }

    /// The hash whose cost most users' have; the dearer one among equals.
    fn most_common_hash(&self) -> Option<Arc<PasswordHash>> {
        let mut counts = HashMap::new();
        for user in self.passwords.values() {
            *counts.entry(user.hash.kind()).or_insert(0u32) += 1;
        }
        let (kind, _) = counts.into_iter().max_by_key(|&(kind, count)| (count, kind))?;
        let user = self.passwords.values().find(|user| user.hash.kind() == kind)?;
        Some(user.hash.clone())
    }

    /// The user of this name, if he has a password.
    pub fn find(&self, name: &[u8]) -> Option<&Account> {
        self.passwords.get(name)
    }

    /// A hash to compare with where there is no such user, so that the time says nothing. `None`:
    /// nobody has a password.
    pub fn decoy(&self) -> Option<&Arc<PasswordHash>> {
        self.decoy.as_ref()
    }

    /// Whose token it is. The digest of a guess is nothing that the guesser can steer, so the time
    /// that looking it up takes tells nothing about the tokens that there are.
    pub fn owner(&self, token: &[u8]) -> Option<&Arc<[u8]>> {
        self.tokens.get(&<[u8; 32]>::from(Sha256::digest(token)))
    }

    /// Whether anybody has a token.
    pub fn has_tokens(&self) -> bool {
        !self.tokens.is_empty()
    }

    /// The SHA-256 of the file.
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

/// Names and hashes are shown to nobody.
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
    for (byte, location) in digest.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(&digits[location..location + 2], 16).ok()?;
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
        let (cheap, dear) = (hash(4), hash(5));
        let text = format!("# users\n\nalice:{cheap}\r\nbob: x\n");
        assert!(Users::parse("users", &text).unwrap_err().to_string().starts_with("users:4: "));
        let text =
            format!("# users\n\nalice:{cheap}\r\nb b:{cheap}\nc:{dear}\nalice:token:{TOKEN}\n");
        let users = Users::parse("users", &text).unwrap();
        assert!(users.find(b"alice").unwrap().hash.is_of(b"secret"));
        assert!(users.find(b"b b").is_some() && users.find(b"Alice").is_none());
        assert_eq!(users.owner(b"test").map(|name| &name[..]), Some(&b"alice"[..]));
        assert!(users.owner(b"Test").is_none() && users.has_tokens());
        assert_eq!(users.decoy().unwrap().kind(), users.find(b"alice").unwrap().hash.kind());
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
