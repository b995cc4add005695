//! The schemes of target URIs.

/// The scheme of a target URI.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Scheme {
    /// `http`
    #[default]
    Http,
    /// `https`
    Https,
}

impl Scheme {
    /// Returns the scheme as it is written in a URI.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    /// Returns the scheme with this name in any case; `None` if it is neither of the two.
    #[inline]
    pub fn from_name(name: &[u8]) -> Option<Self> {
        let is = |scheme: &Self| name.eq_ignore_ascii_case(scheme.as_str().as_bytes());
        [Self::Http, Self::Https].into_iter().find(is)
    }

    /// Splits a scheme and `://` off the start of a URI; `None` if it does not begin with one of
    /// the schemes.
    pub fn split_off(uri: &[u8]) -> Option<(Self, &[u8])> {
        [Self::Http, Self::Https].into_iter().find_map(|scheme| {
            let (name, rest) = uri.split_at_checked(scheme.as_str().len())?;
            let is_scheme = name.eq_ignore_ascii_case(scheme.as_str().as_bytes());
            rest.strip_prefix(b"://").filter(|_| is_scheme).map(|rest| (scheme, rest))
        })
    }

    /// Returns the default port of the scheme (RFC 9110 section 4.2).
    pub const fn port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}
