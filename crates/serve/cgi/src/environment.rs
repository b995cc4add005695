//! The environment of a program: the variables of the request that a list allows, and those that
//! name the program.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use millrace_fastcgi::CGI_FOLDER_VARIABLE;

use crate::find::FoundProgram;

/// The meta-variables of RFC 3875 section 4.1 that a request may set, and some that most servers
/// set. Those that name the program are set here. REDIRECT_STATUS is not among them: it makes
/// php-cgi run any file that PATH_TRANSLATED names.
const ALLOWED: [&str; 19] = [
    "AUTH_TYPE",
    "CONTENT_LENGTH",
    "CONTENT_TYPE",
    "GATEWAY_INTERFACE",
    "HTTPS",
    "QUERY_STRING",
    "REMOTE_ADDR",
    "REMOTE_HOST",
    "REMOTE_IDENT",
    "REMOTE_PORT",
    "REMOTE_USER",
    "REQUEST_METHOD",
    "REQUEST_SCHEME",
    "REQUEST_URI",
    "SERVER_ADDR",
    "SERVER_NAME",
    "SERVER_PORT",
    "SERVER_PROTOCOL",
    "SERVER_SOFTWARE",
];

/// The search path of programs.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// The variables of a request that select its program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ProgramName<'a> {
    /// The number of the folder.
    pub(crate) folder: usize,
    /// The path of the route, without a slash at its end.
    pub(crate) mount: &'a [u8],
    /// The path of the request below that of the route, decoded.
    pub(crate) path: &'a [u8],
}

impl<'a> ProgramName<'a> {
    /// Returns the name; `None` if a variable is missing.
    pub(crate) fn from_variables(variables: &[(&'a [u8], &'a [u8])]) -> Option<Self> {
        let value = |wanted: &str| {
            variables.iter().find(|(name, _)| *name == wanted.as_bytes()).map(|(_, value)| *value)
        };
        let folder = std::str::from_utf8(value(CGI_FOLDER_VARIABLE)?).ok()?.parse().ok()?;
        Some(Self { folder, mount: value("SCRIPT_NAME")?, path: value("PATH_INFO")? })
    }
}

/// Returns the environment of a program that was found in the folder with the path `folder`.
pub(crate) fn compose(
    variables: &[(&[u8], &[u8])],
    mount: &[u8],
    folder: &Path,
    found: &FoundProgram<'_>,
) -> BTreeMap<OsString, OsString> {
    let allowed = variables.iter().filter(|(name, value)| is_allowed(name, value));
    let owned = |bytes: &[u8]| OsStr::from_bytes(bytes).to_owned();
    let mut all: BTreeMap<_, _> =
        allowed.map(|(name, value)| (owned(name), owned(value))).collect();
    let root = folder.as_os_str().as_bytes();
    let root = root.strip_suffix(b"/").unwrap_or(root);
    let mut set = |name: &str, value: Vec<u8>| all.insert(name.into(), OsString::from_vec(value));
    set("PATH", PATH.into());
    set("SCRIPT_NAME", [mount, found.path].concat());
    set("SCRIPT_FILENAME", [root, found.path].concat());
    if !found.path_info.is_empty() {
        set("PATH_INFO", found.path_info.to_vec());
        // An escaped slash may have made a segment that leads upwards.
        if !found.path_info.split(|&byte| byte == b'/').any(|segment| segment == b"..") {
            set("PATH_TRANSLATED", [root, found.path_info].concat());
        }
    }
    all.retain(|_, value| !value.as_bytes().contains(&0));
    all
}

/// Returns whether a program gets a variable. A compromised worker could otherwise set LD_PRELOAD.
fn is_allowed(name: &[u8], value: &[u8]) -> bool {
    let is_character =
        |byte: &u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || *byte == b'_';
    match name.strip_prefix(b"HTTP_") {
        // RFC 3875 section 4.1.18, and HTTP_PROXY, which many programs take for the address of a
        // proxy.
        Some(b"PROXY" | b"AUTHORIZATION" | b"PROXY_AUTHORIZATION") => false,
        Some(field) => field.iter().all(is_character),
        // RFC 3875 section 4.1.2: without a body, there is no length.
        None if name == b"CONTENT_LENGTH" => !value.is_empty(),
        None => ALLOWED.iter().any(|allowed| allowed.as_bytes() == name),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;

    fn composed(variables: &[(&str, &str)], path_info: &str) -> BTreeMap<String, String> {
        let variables: Vec<_> =
            variables.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect();
        let file: OwnedFd = millrace_sys::open_folder(Path::new("/")).unwrap();
        let path_info = path_info.as_bytes();
        let found = FoundProgram { file, folder: None, path: b"/sub/a", path_info };
        let all = compose(&variables, b"/cgi-bin", Path::new("/srv/cgi/"), &found);
        let text = |text: OsString| text.into_string().unwrap();
        all.into_iter().map(|(name, value)| (text(name), text(value))).collect()
    }

    #[test]
    fn only_variables_of_requests_are_passed_on() {
        let found = composed(
            &[
                ("REQUEST_METHOD", "GET"),
                ("HTTP_X_A", "1"),
                ("CONTENT_LENGTH", ""),
                ("HTTP_PROXY", "http://evil"),
                ("HTTP_AUTHORIZATION", "Basic eA=="),
                ("HTTP_a", "1"),
                ("LD_PRELOAD", "/x"),
                ("PATH", "/evil"),
                ("SCRIPT_FILENAME", "/etc/passwd"),
                (CGI_FOLDER_VARIABLE, "0"),
                ("QUERY_STRING", "a\0b"),
            ],
            "",
        );
        let expected = [
            ("HTTP_X_A", "1"),
            ("PATH", PATH),
            ("REQUEST_METHOD", "GET"),
            ("SCRIPT_FILENAME", "/srv/cgi/sub/a"),
            ("SCRIPT_NAME", "/cgi-bin/sub/a"),
        ];
        assert_eq!(found, expected.map(|(a, b)| (a.to_owned(), b.to_owned())).into());
    }

    #[test]
    fn the_rest_of_the_path_is_translated_below_the_folder() {
        let found = composed(&[("CONTENT_LENGTH", "3")], "/x y");
        assert_eq!(found["PATH_INFO"], "/x y");
        assert_eq!(found["PATH_TRANSLATED"], "/srv/cgi/x y");
        assert_eq!(found["CONTENT_LENGTH"], "3");
        let found = composed(&[], "/../x");
        assert_eq!(found["PATH_INFO"], "/../x");
        assert!(!found.contains_key("PATH_TRANSLATED"));
    }

    #[test]
    fn a_request_names_its_program() {
        let number = CGI_FOLDER_VARIABLE.as_bytes();
        let variables: [(&[u8], &[u8]); 3] =
            [(number, b"2"), (b"SCRIPT_NAME", b"/c"), (b"PATH_INFO", b"/a/b")];
        let name = ProgramName::from_variables(&variables).unwrap();
        assert_eq!((name.folder, name.mount, name.path), (2, &b"/c"[..], &b"/a/b"[..]));
        assert_eq!(ProgramName::from_variables(&variables[1..]), None);
    }
}
