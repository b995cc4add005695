//! How an origin reads the path of a request.

/// Where an origin cuts the path at a semicolon.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Cut {
    /// A semicolon is an ordinary character.
    #[default]
    Nowhere,
    /// Each segment ends at its first semicolon, as in Java servlet containers.
    Segment,
    /// The path ends at its first semicolon.
    End,
}

/// How an origin reads the path of a request. Every origin decodes unreserved characters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PathReading {
    /// `%2f` is a slash.
    pub encoded_slash: bool,
    /// `\` is a slash, and so is `%5c`.
    pub backslash: bool,
    /// Several slashes are one.
    pub merges: bool,
    /// Slashes are merged after dot segments are removed, not before.
    pub merges_last: bool,
    /// Dot segments are removed, RFC 3986 section 5.2.4.
    pub removes_dots: bool,
    /// Dot segments are also removed before anything is decoded or cut.
    pub removes_dots_first: bool,
    /// Where semicolons cut the path.
    pub cut: Cut,
    /// The path is cut after slashes are decoded, not before.
    pub cuts_decoded: bool,
}

impl PathReading {
    /// Returns the page of a target.
    pub fn page(&self, target: &str) -> String {
        let mut path = target.split('?').next().unwrap_or_default().to_owned();
        if self.removes_dots_first {
            path = without_dots(&path);
        }
        path = match self.cuts_decoded {
            true => self.cut(&self.decode(&path)),
            false => self.decode(&self.cut(&path)),
        };
        if self.merges && !self.merges_last {
            path = merged(path);
        }
        if self.removes_dots {
            path = without_dots(&path);
        }
        if self.merges { merged(path) } else { path }
    }

    fn cut(&self, path: &str) -> String {
        let before = |text: &str| text.split(';').next().unwrap_or_default().to_owned();
        match self.cut {
            Cut::Nowhere => path.to_owned(),
            Cut::Segment => path.split('/').map(before).collect::<Vec<_>>().join("/"),
            Cut::End => before(path),
        }
    }

    fn decode(&self, path: &str) -> String {
        let mut page = String::new();
        let mut rest = path;
        while let Some(first) = rest.chars().next() {
            let digits = rest.strip_prefix('%').and_then(|after| after.get(..2));
            let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
            let decoded = match byte.map(char::from) {
                Some('/') if self.encoded_slash => Some('/'),
                Some('\\') if self.backslash => Some('/'),
                Some(it) if it.is_ascii_alphanumeric() || "-._~".contains(it) => Some(it),
                _ => None,
            };
            match decoded {
                Some(character) => {
                    page.push(character);
                    rest = &rest[3..];
                }
                None => {
                    page.push(if first == '\\' && self.backslash { '/' } else { first });
                    rest = &rest[first.len_utf8()..];
                }
            }
        }
        page
    }
}

fn merged(mut path: String) -> String {
    while path.contains("//") {
        path = path.replace("//", "/");
    }
    path
}

/// Removes dot segments as in RFC 3986 section 5.2.4.
fn without_dots(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let segments: Vec<&str> = path.split('/').skip(1).collect();
    for (at, segment) in segments.iter().enumerate() {
        let is_last = at + 1 == segments.len();
        match *segment {
            "." | ".." => {
                if *segment == ".." {
                    kept.pop();
                }
                if is_last {
                    kept.push("");
                }
            }
            segment => kept.push(segment),
        }
    }
    format!("/{}", kept.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: PathReading = PathReading {
        encoded_slash: true,
        backslash: true,
        merges: true,
        merges_last: false,
        removes_dots: true,
        removes_dots_first: false,
        cut: Cut::Segment,
        cuts_decoded: false,
    };

    #[test]
    fn an_origin_that_decodes_and_resolves_reads_one_page() {
        for target in [
            "/account",
            "//account",
            "/%61ccount?x=/static/",
            "/static/../account",
            "/static/..%2Faccount",
            "/static/%2e%2e/account",
            "/static\\..\\account",
            "/static/..%5caccount",
            "/static/..;x=1/account;y",
            "/static/.//../account",
        ] {
            assert_eq!(ALL.page(target), "/account", "{target}");
        }
        assert_eq!(ALL.page("/static/.."), "/");
        assert_eq!(ALL.page("/../../a/."), "/a/");
    }

    #[test]
    fn each_step_can_be_left_out() {
        let plain = PathReading::default();
        assert_eq!(plain.page("/a//..%2f%2E\\;b?c"), "/a//..%2f.\\;b");
        let merges = PathReading { merges: true, ..plain };
        assert_eq!(merges.page("/a///b"), "/a/b");
        let dots = PathReading { removes_dots: true, ..plain };
        assert_eq!(dots.page("/a//../b"), "/a/b");
        let twice = PathReading { removes_dots_first: true, encoded_slash: true, ..dots };
        assert_eq!(twice.page("/static/a%2fb/../..%2faccount"), "/account");
        let once = PathReading { removes_dots_first: false, ..twice };
        assert_eq!(once.page("/static/a%2fb/../..%2faccount"), "/static/account");
        let last = PathReading { merges: true, merges_last: true, ..dots };
        assert_eq!(last.page("/a//../b"), "/a/b");
        assert_eq!(PathReading { merges_last: false, ..last }.page("/a//../b"), "/b");
        let decodes = PathReading { encoded_slash: true, cut: Cut::Segment, ..plain };
        assert_eq!(decodes.page("/a;b%2fc"), "/a");
        assert_eq!(PathReading { cuts_decoded: true, ..decodes }.page("/a;b%2fc"), "/a/c");
        let end = PathReading { cut: Cut::End, ..plain };
        assert_eq!(end.page("/a;b/../c"), "/a");
        let segment = PathReading { cut: Cut::Segment, ..plain };
        assert_eq!(segment.page("/a;b/c;d"), "/a/c");
    }
}
