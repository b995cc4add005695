//! Host names that may be sent to name servers.

use std::sync::Arc;

/// A checked host name in lower case: labels of 1 to 63 alphanumeric characters, `-` and `_`, at
/// most 253 bytes in all (RFC 1035 section 2.3.4). A final dot is kept, because no search list
/// applies to such a name.
///
/// RFC 952 does not allow the underscore, but container networks use it in names. Other bytes are
/// refused: hosts do not have such names, and a name is also a cache key and appears in logs.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct DomainName(Arc<[u8]>);

impl DomainName {
    /// Maximum bytes of a name, without a final dot.
    pub(super) const LENGTH_MAX: usize = 253;
    /// Maximum bytes of a label.
    const LABEL_MAX: usize = 63;

    /// Checks a name. Returns `None` if it is not valid, or if it is an address in one of the
    /// notations that inet_aton(3) accepts: these end in a number, which no host name does (RFC
    /// 1123 section 2.1).
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        let bare = text.strip_suffix(b".").unwrap_or(text);
        let sound = (1..=Self::LENGTH_MAX).contains(&bare.len())
            && bare.split(|&byte| byte == b'.').all(is_label)
            && !bare.rsplit(|&byte| byte == b'.').next().is_some_and(is_number);
        sound.then(|| Self(text.to_ascii_lowercase().into()))
    }

    /// Returns the name without a final dot.
    pub(super) fn without_final_dot(&self) -> &[u8] {
        self.0.strip_suffix(b".").unwrap_or(&self.0)
    }

    /// Returns whether the name ends in a dot, so that no search list applies.
    pub(super) fn is_absolute(&self) -> bool {
        self.0.ends_with(b".")
    }

    /// Returns the number of dots between labels.
    pub(super) fn dot_count(&self) -> usize {
        self.without_final_dot().iter().filter(|&&byte| byte == b'.').count()
    }

    /// Returns whether the name is `domain` or a subdomain of it.
    pub(super) fn is_within(&self, domain: &[u8]) -> bool {
        self.without_final_dot()
            .strip_suffix(domain)
            .is_some_and(|before| before.is_empty() || before.ends_with(b"."))
    }

    /// Returns this name as a subdomain of `domain`; `None` if the result is too long.
    pub(super) fn append_domain(&self, domain: &DomainName) -> Option<Self> {
        let name = [self.without_final_dot(), b".", domain.without_final_dot()].concat();
        (name.len() <= Self::LENGTH_MAX).then(|| Self(name.into()))
    }
}

fn is_label(label: &[u8]) -> bool {
    (1..=DomainName::LABEL_MAX).contains(&label.len())
        && label.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
}

fn is_number(label: &[u8]) -> bool {
    let hex = label.strip_prefix(b"0x").or_else(|| label.strip_prefix(b"0X"));
    label.iter().all(u8::is_ascii_digit)
        || hex.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_names_are_lowered_and_others_refused() {
        for (text, key) in [
            ("Example.ORG", "example.org"),
            ("example.org.", "example.org."),
            ("a", "a"),
            ("xn--caf-dma.example", "xn--caf-dma.example"),
            ("my_service", "my_service"),
            ("1.example", "1.example"),
            ("3com", "3com"),
            ("0x.example", "0x.example"),
        ] {
            assert_eq!(&*DomainName::parse(text.as_bytes()).unwrap().0, key.as_bytes());
        }
        let long_label = "a".repeat(64);
        let long_name = ["a".repeat(63).as_str(); 4].join(".");
        assert_eq!(long_name.len(), 255);
        for text in [
            "",
            ".",
            "..",
            "a..b",
            ".a",
            "a..",
            "a b",
            "a/b",
            "a:b",
            "a%2eb",
            "caf\u{e9}",
            "a\0",
            "127.1",
            "2130706433",
            "0x7f.1",
            "example.0x7F",
            "1.2.3.4",
            "1.2.3.4.",
            "a.0x",
            &long_label,
            &long_name,
        ] {
            assert_eq!(DomainName::parse(text.as_bytes()), None, "{text:?}");
        }
        assert!(DomainName::parse(&long_name.as_bytes()[..253]).is_some());
    }

    #[test]
    fn a_domain_contains_its_subdomains() {
        let within = |name: &str, domain: &str| {
            DomainName::parse(name.as_bytes()).unwrap().is_within(domain.as_bytes())
        };
        assert!(within("localhost", "localhost"));
        assert!(within("a.localhost.", "localhost"));
        assert!(!within("notlocalhost", "localhost"));
        assert!(!within("localhost.example", "localhost"));
    }
}
