//! Values of the options for folders in the form that users write; see [`value`](crate::value).

use millrace_files::{ContentTypes, NamePattern, TryFile};
use millrace_http1::split_list;

use crate::value::{Problem, parse_file_path};

/// Parses the name of a file.
pub(super) fn parse_file_name(text: &str) -> Result<Vec<u8>, Problem> {
    check_name(text)?;
    match text {
        "." | ".." => Err("is not the name of a file"),
        _ if text.contains(',') => Err(WITH_COMMA),
        _ => Ok(text.as_bytes().to_vec()),
    }
}

/// Commas separate the values of other options, so they are no part of a name here.
const WITH_COMMA: Problem = "has a comma (give each name separately)";

/// Parses a pattern of names.
pub(super) fn parse_pattern(text: &str) -> Result<NamePattern, Problem> {
    check_name(text)?;
    Ok(NamePattern::new(text.as_bytes()))
}

/// Parses a pattern of extensions, which begins with their dot or a wildcard.
pub(super) fn parse_extension(text: &str) -> Result<NamePattern, Problem> {
    let pattern = parse_pattern(text)?;
    match text.starts_with(['.', '*', '?']) {
        true => Ok(pattern),
        false => Err("does not begin with a dot"),
    }
}

/// Checks a text that is a part of one name. It is not empty.
fn check_name(text: &str) -> Result<(), Problem> {
    parse_file_path(text)?;
    if text.contains('/') { Err("has a slash") } else { Ok(()) }
}

/// Parses a place at which a request is looked for.
pub(super) fn parse_try_file(text: &str) -> Result<TryFile, Problem> {
    parse_file_path(text)?;
    if text.contains(',') {
        return Err(WITH_COMMA);
    }
    TryFile::parse(text).map_err(|_| "is not a path to try")
}

/// Parses the path of a file below the folder, which begins with a slash. Returns it without this
/// slash.
pub(super) fn parse_fallback(text: &str) -> Result<Vec<u8>, Problem> {
    parse_file_path(text)?;
    match TryFile::parse(text) {
        Ok(TryFile::Fixed(path)) => Ok(path),
        Ok(TryFile::Request(_)) | Err(_) => Err("is not the path of a file below the folder"),
    }
}

/// Writes a path in the form that [`parse_fallback`] parses.
pub(super) fn write_fallback(path: &[u8]) -> String {
    TryFile::Fixed(path.to_vec()).to_string()
}

/// Parses `.EXT=TYPE` into the extension, in lower case and without its dot, and the media type.
pub(super) fn parse_media_type(text: &str) -> Result<(String, String), Problem> {
    let (extension, kind) = text.split_once('=').ok_or("has no =")?;
    let extension = extension.strip_prefix('.').ok_or("does not begin with a dot")?;
    check_name(extension)?;
    if extension.contains('.') {
        return Err("has an extension with a dot, which no file has");
    }
    let media_type = (extension.to_ascii_lowercase(), kind.to_owned());
    let table = ContentTypes::new([media_type.clone()], None, UNKNOWN.to_owned());
    table.map(|_| media_type).map_err(|_| "has no media type")
}

/// Parses a pattern of media types.
pub(crate) fn parse_media_pattern(text: &str) -> Result<NamePattern, Problem> {
    let is_valid = text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b';');
    match is_valid && (text.contains('/') || text.contains('*')) {
        true => Ok(NamePattern::new(text.as_bytes())),
        false => Err("is not a pattern of media types"),
    }
}

/// Writes a media type in the form that [`parse_media_type`] parses.
pub(super) fn write_media_type((extension, kind): (&str, &str)) -> String {
    format!(".{extension}={kind}")
}

/// Parses a charset, or `off`.
pub(super) fn parse_charset(text: &str) -> Result<Option<String>, Problem> {
    match text {
        "off" => Ok(None),
        "true" | "false" => Err("is neither a charset nor off"),
        _ => {
            let charset = Some(text.to_owned());
            let table = ContentTypes::new([], charset.clone(), UNKNOWN.to_owned());
            table.map(|_| charset).map_err(|_| "is not a charset")
        }
    }
}

/// Any valid media type.
const UNKNOWN: &str = "application/octet-stream";

/// Parses a value of Cache-Control (RFC 9111 section 5.2), or `off`.
pub(super) fn parse_cache_control(text: &str) -> Result<Option<Vec<u8>>, Problem> {
    match text {
        "off" => return Ok(None),
        "true" | "false" => return Err("is neither a list of directives nor off"),
        "" => return Err("is empty"),
        _ => {}
    }
    let value = text.as_bytes();
    if !value.iter().all(|byte| (b' '..=b'~').contains(byte)) {
        return Err("has a character that a header field cannot have");
    }
    let is_empty = split_list(value).next().is_none();
    if is_empty || text.trim() != text || !split_list(value).all(is_directive) {
        return Err("is not a list of directives");
    }
    Ok(Some(value.to_vec()))
}

/// Returns whether a member of a list is `NAME`, `NAME=TOKEN` or `NAME="TEXT"`.
fn is_directive(member: &[u8]) -> bool {
    // RFC 9110 section 5.6.2.
    let is_of_token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    let is_token = |text: &[u8]| !text.is_empty() && text.iter().all(is_of_token);
    let Some(at) = member.iter().position(|&byte| byte == b'=') else { return is_token(member) };
    let (name, argument) = (&member[..at], &member[at + 1..]);
    is_token(name)
        && match argument {
            [b'"', inner @ .., b'"'] => !inner.iter().any(|byte| b"\"\\".contains(byte)),
            token => is_token(token),
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_no_comma() {
        assert_eq!(parse_file_name("index.php,index.html"), Err(WITH_COMMA));
        assert_eq!(parse_try_file("{path},/index.php").err(), Some(WITH_COMMA));
        assert_eq!(parse_file_name("index.php"), Ok(b"index.php".to_vec()));
    }

    #[test]
    fn names_and_patterns_have_no_slash() {
        assert_eq!(parse_file_name("index.html"), Ok(b"index.html".to_vec()));
        for text in ["", ".", "..", "a/b", "/a", "a\n"] {
            assert!(parse_file_name(text).is_err(), "{text}");
        }
        assert_eq!(parse_pattern("*.key").map(|it| it.as_bytes().to_vec()), Ok(b"*.key".to_vec()));
        assert!(parse_pattern("").is_err() && parse_pattern("a/*").is_err());
        for text in [".php*", "*", "?x"] {
            assert!(parse_extension(text).is_ok(), "{text}");
        }
        assert!(parse_extension("php").is_err() && parse_extension(".a/b").is_err());
    }

    #[test]
    fn places_and_fallbacks_are_below_the_folder() {
        for text in ["{path}", "{path}.html", "{path}/index.html", "/app.html"] {
            assert_eq!(parse_try_file(text).map(|it| it.to_string()).as_deref(), Ok(text));
        }
        for text in ["", "a", "/../a", "/a\tb", "{uri}"] {
            assert!(parse_try_file(text).is_err(), "{text}");
        }
        assert_eq!(parse_fallback("/app/index.html"), Ok(b"app/index.html".to_vec()));
        assert_eq!(write_fallback(b"app/index.html"), "/app/index.html");
        for text in ["", "index.html", "/", "/../a", "/a//b", "{path}", "{path}.html"] {
            assert!(parse_fallback(text).is_err(), "{text}");
        }
    }

    #[test]
    fn media_types_have_an_extension() {
        let parsed = parse_media_type(".GLB=model/gltf-binary").unwrap();
        assert_eq!(parsed, ("glb".to_owned(), "model/gltf-binary".to_owned()));
        assert_eq!(write_media_type((&parsed.0, &parsed.1)), ".glb=model/gltf-binary");
        assert!(parse_media_type(".txt=text/plain; charset=iso-8859-1").is_ok());
        for text in ["", ".a", "a=b/c", "=b/c", ".=b/c", ".a.b=c/d", ".a/b=c/d", ".a=b", ".a=b/\n"]
        {
            assert!(parse_media_type(text).is_err(), "{text}");
        }
        assert_eq!(parse_charset("off"), Ok(None));
        assert_eq!(parse_charset("iso-8859-1"), Ok(Some("iso-8859-1".to_owned())));
        for text in ["", "a b", "true", "a\n"] {
            assert!(parse_charset(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_cache_control_is_a_list_of_directives() {
        for text in [
            "max-age=3600",
            "public, max-age=31536000, immutable",
            "no-cache=\"a, b\",private",
            "no-store",
        ] {
            assert_eq!(parse_cache_control(text), Ok(Some(text.as_bytes().to_vec())));
        }
        assert_eq!(parse_cache_control("off"), Ok(None));
        for text in [
            "",
            " ",
            ",",
            " no-store",
            "max-age=",
            "max-age = 1",
            "a b",
            "=1",
            "a=\"b",
            "a=\"b\"c\"",
            "true",
            "a\r\nX: y",
            "\u{e9}",
        ] {
            assert!(parse_cache_control(text).is_err(), "{text}");
        }
    }
}
