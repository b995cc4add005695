//! Content codings of stored files, and their choice by `Accept-Encoding` (RFC 9110 section
//! 12.5.3).

use millrace_http1::split_tokens;

use super::limits::ACCEPTED_CODINGS_MAX;

/// A content coding in which a file may lie beside the original.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Coding {
    /// Brotli: `.br`.
    Brotli,
    /// Zstandard: `.zst`.
    Zstd,
    /// gzip: `.gz`.
    Gzip,
}

impl Coding {
    /// The codings, the smallest usual result first. Between codings that the client likes equally,
    /// the first one is chosen.
    pub const ALL: [Self; 3] = [Self::Brotli, Self::Zstd, Self::Gzip];

    /// Returns the value of `Content-Encoding`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Brotli => "br",
            Self::Zstd => "zstd",
            Self::Gzip => "gzip",
        }
    }

    /// Returns the end of the name of an encoded file.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::Brotli => ".br",
            Self::Zstd => ".zst",
            Self::Gzip => ".gz",
        }
    }

    fn from_name(name: &[u8]) -> Option<Self> {
        let is_name = |coding: &Self| name.eq_ignore_ascii_case(coding.name().as_bytes());
        // RFC 9110 section 8.4.1.3: `x-gzip` is the same as `gzip`.
        let is_old_name = name.eq_ignore_ascii_case(b"x-gzip");
        Self::ALL.into_iter().find(is_name).or(is_old_name.then_some(Self::Gzip))
    }
}

/// The codings that a client accepts, by weight in thousandths; 0 is not acceptable.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct AcceptedCodings {
    /// In the order of [`Coding::ALL`].
    weights: [u16; 3],
    /// The weight of the file as it is; 0 if the client does not name `identity`.
    identity: u16,
}

impl AcceptedCodings {
    /// The client accepts files as they are. A request without `Accept-Encoding` accepts any
    /// coding, but such clients often know none.
    pub const NONE: Self = Self { weights: [0; 3], identity: 0 };

    /// Parses the values of `Accept-Encoding`. The first member for a coding counts. A member with
    /// a malformed weight is not acceptable. The weight of `*` applies to codings that are not
    /// named. The file as it is remains acceptable even if `identity` is excluded: section 12.5.3
    /// permits such a response, and a 406 would help no client.
    pub fn parse<'a>(values: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut weights = [None; 3];
        let (mut identity, mut any) = (None, None);
        for member in values.flat_map(split_tokens).take(ACCEPTED_CODINGS_MAX) {
            let mut parts = member.split(|&byte| byte == b';').map(<[u8]>::trim_ascii);
            let name = parts.next().unwrap_or_default();
            let place = match Coding::from_name(name) {
                Some(coding) => &mut weights[coding as usize],
                None if name == b"*" => &mut any,
                None if name.eq_ignore_ascii_case(b"identity") => &mut identity,
                None => continue,
            };
            place.get_or_insert(weight(parts));
        }
        let any = any.unwrap_or(0);
        Self {
            weights: weights.map(|weight| weight.unwrap_or(any)),
            identity: identity.unwrap_or(0),
        }
    }

    /// Returns whether the client prefers no coding to the file as it is.
    pub fn is_empty(&self) -> bool {
        self.preferred().next().is_none()
    }

    /// Returns the codings that the client prefers to the file as it is, the most preferred first.
    pub fn preferred(&self) -> impl Iterator<Item = Coding> {
        let weight = |coding: Coding| self.weights[coding as usize];
        let mut order = Coding::ALL;
        order.sort_by_key(|coding| u16::MAX - weight(*coding));
        let least = self.identity.max(1);
        let weights = self.weights;
        order.into_iter().filter(move |coding| weights[*coding as usize] >= least)
    }
}

/// Returns the weight of a member in thousandths, from its parameters (section 12.4.2). Without
/// `q` it is 1000.
fn weight<'a>(mut parameters: impl Iterator<Item = &'a [u8]>) -> u16 {
    let value = parameters.find_map(|parameter| match parameter {
        [b'q' | b'Q', b'=', value @ ..] => Some(value),
        _ => None,
    });
    value.map_or(WEIGHT_MAX, |value| parse_weight(value).unwrap_or(0))
}

const WEIGHT_MAX: u16 = 1000;

/// Parses a weight: 0 or 1, a point, and up to three digits.
fn parse_weight(value: &[u8]) -> Option<u16> {
    let (&[whole @ (b'0' | b'1')], fraction) = value.split_at_checked(1)? else { return None };
    let digits = match fraction {
        [] => &[][..],
        [b'.', digits @ ..] if digits.len() <= 3 => digits,
        _ => return None,
    };
    let mut thousandths = u16::from(whole - b'0') * WEIGHT_MAX;
    for (digit, unit) in digits.iter().zip([100, 10, 1]) {
        thousandths += u16::from(digit.is_ascii_digit().then(|| digit - b'0')?) * unit;
    }
    (thousandths <= WEIGHT_MAX).then_some(thousandths)
}

/// Parses any bytes as lines of `Accept-Encoding`. Called by the fuzz target, and by a test.
///
/// # Panics
/// Panics if a preferred coding is not acceptable, or if the order is not that of the weights.
pub fn fuzz_accept_encoding(data: &[u8]) {
    let accepted = AcceptedCodings::parse(data.split(|&byte| byte == b'\n'));
    let preferred: Vec<u16> =
        accepted.preferred().map(|coding| accepted.weights[coding as usize]).collect();
    assert!(preferred.is_sorted_by(|before, after| before >= after));
    assert!(preferred.iter().all(|weight| (1..=WEIGHT_MAX).contains(weight)));
    assert!(preferred.iter().all(|weight| *weight >= accepted.identity));
    assert_eq!(accepted.is_empty(), preferred.is_empty());
    assert!(data.contains(&b'*') || data.len() >= "br".len() || preferred.is_empty());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn preferred(value: &str) -> Vec<&'static str> {
        let lines = value.split('\n').map(str::as_bytes);
        AcceptedCodings::parse(lines).preferred().map(Coding::name).collect()
    }

    #[test]
    fn codings_are_preferred_by_weight_rfc_9110_section_12_5_3() {
        for (value, expected) in [
            ("", &[][..]),
            ("gzip", &["gzip"]),
            ("gzip, deflate, br, zstd", &["br", "zstd", "gzip"]),
            ("gzip, deflate, br", &["br", "gzip"]),
            ("GZIP;Q=1.0, Br;q=0.5", &["gzip", "br"]),
            ("x-gzip", &["gzip"]),
            ("br;q=0, gzip", &["gzip"]),
            ("br ; q=0.001 , zstd;q=1.000", &["zstd", "br"]),
            ("*", &["br", "zstd", "gzip"]),
            ("*;q=0, gzip;q=0.3", &["gzip"]),
            ("gzip;q=0.1, *;q=0.2", &["br", "zstd", "gzip"]),
            ("identity", &[]),
            ("identity;q=0.5, gzip;q=0.5, br;q=0.4", &["gzip"]),
            ("identity;q=0, gzip;q=0", &[]),
            ("gzip\nbr", &["br", "gzip"]),
            ("gzip;q=0, gzip;q=1", &[]),
            ("gzip;q=2", &[]),
            ("gzip;q=1.001", &[]),
            ("gzip;q=0.1234", &[]),
            ("gzip;q=", &[]),
            ("gzip;q=-1", &[]),
            ("gzip;q=0.x", &[]),
            ("gzip;level=9;q=0", &[]),
            ("brotli, compress", &[]),
        ] {
            assert_eq!(preferred(value), expected, "{value}");
        }
        assert!(AcceptedCodings::NONE.is_empty() && AcceptedCodings::default().is_empty());
    }

    #[test]
    fn a_long_list_is_cut() {
        let long = "a,".repeat(ACCEPTED_CODINGS_MAX);
        assert!(preferred(&format!("{long}br")).is_empty());
        assert_eq!(preferred(&format!("{}br", &long[2..])), ["br"]);
    }

    #[test]
    fn any_bytes_are_parsed_safely() {
        const PARTS: [&[u8]; 13] = [
            b"br",
            b"gzip",
            b"zstd",
            b"*",
            b"identity",
            b",",
            b";",
            b"q=",
            b"0.",
            b"1",
            b"5",
            b" ",
            b"\n",
        ];
        let mut random = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
        println!("seed {random}");
        for _ in 0..20_000 {
            let mut value = Vec::new();
            for _ in 0..12 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                value.extend_from_slice(PARTS[(random >> 33) as usize % PARTS.len()]);
            }
            fuzz_accept_encoding(&value);
        }
    }
}
