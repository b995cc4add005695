//! The query of an admin request.

use super::response::AdminResponse;

/// Names and percent-decoded values; each name occurs once.
#[derive(Debug, Default)]
pub(super) struct Query<'a>(Vec<(&'a str, Vec<u8>)>);

impl<'a> Query<'a> {
    /// Parses a query in which only `names` are allowed.
    ///
    /// # Errors
    /// A response that lists the allowed names.
    pub(super) fn parse(text: &'a str, names: &[&str]) -> Result<Self, AdminResponse> {
        let refused = |wrong: String| {
            let line = format!("{wrong} (expected, each at most once: {})", names.join(", "));
            AdminResponse::text((400, "Bad Request"), &line)
        };
        let mut query = Self::default();
        for part in text.split('&').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            if !names.contains(&name) {
                return Err(refused(format!("unknown parameter {name:?}")));
            }
            if query.get(name).is_some() {
                return Err(refused(format!("duplicate parameter {name}")));
            }
            let Some(value) = percent_decoded(value) else {
                return Err(refused(format!("invalid {name}: % without two hexadecimal digits")));
            };
            query.0.push((name, value));
        }
        Ok(query)
    }

    /// Returns the value of a name.
    pub(super) fn get(&self, name: &str) -> Option<&[u8]> {
        self.0.iter().find(|(other, _)| *other == name).map(|(_, value)| &value[..])
    }

    /// Returns whether a flag is present: the name alone, or with an empty value or 1.
    ///
    /// # Errors
    /// A response that refuses any other value.
    pub(super) fn flag(&self, name: &str) -> Result<bool, AdminResponse> {
        match self.get(name) {
            None => Ok(false),
            Some(b"" | b"1") => Ok(true),
            Some(_) => {
                let wrong = format!("invalid {name} (expected: no value)");
                Err(AdminResponse::text((400, "Bad Request"), &wrong))
            }
        }
    }
}

/// Decodes `%XX` (RFC 3986 section 2.1). `+` is not decoded: the values are URLs, not form fields.
fn percent_decoded(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut parts = text.split('%');
    bytes.extend_from_slice(parts.next().unwrap_or_default().as_bytes());
    for part in parts {
        let (digits, rest) = part.as_bytes().split_at_checked(2)?;
        let digit = |at: usize| char::from(digits[at]).to_digit(16);
        bytes.push((digit(0)? * 16 + digit(1)?) as u8);
        bytes.extend_from_slice(rest);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_decoded_or_refused() {
        let query = Query::parse("url=http://a/%3fb=c%26d+e%ff&&all", &["url", "all"]).unwrap();
        assert_eq!(query.get("url"), Some(&b"http://a/?b=c&d+e\xff"[..]));
        assert!(query.flag("all").unwrap() && !query.flag("soft").unwrap());
        for (text, part) in [
            ("uri=a", "unknown parameter \"uri\" (expected, each at most once: url, all)"),
            ("url=a&url=b", "duplicate parameter url"),
            ("url=%4", "two hexadecimal digits"),
            ("url=%xx", "two hexadecimal digits"),
            ("url=%+1", "two hexadecimal digits"),
        ] {
            let refusal = Query::parse(text, &["url", "all"]).unwrap_err();
            assert!(refusal.status.0 == 400 && refusal.body.contains(part), "{text}");
        }
        assert!(Query::parse("all=no", &["all"]).unwrap().flag("all").is_err());
    }
}
