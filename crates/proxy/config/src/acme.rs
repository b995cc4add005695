//! The options of certificates that are ordered by ACME (RFC 8555).

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use millrace_tls::Roots;

use super::error::ConfigError;
use super::raw::RawTable;
use super::toml_text::{basic_string, string_array, write_key};
use super::value::{self, Problem};
use super::{ListenAddress, Listener};

/// The directory of Let's Encrypt for certificates that browsers trust.
pub const LETS_ENCRYPT: &str = "https://acme-v02.api.letsencrypt.org/directory";
/// The port of plain HTTP, where an authority looks for the challenge http-01.
const HTTP_PORT: u16 = 80;
/// The most bytes of a mail address (RFC 5321 section 4.5.3.1.3).
const MAIL_BYTES_MAX: usize = 254;

/// How the certificate of a service is ordered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Acme {
    /// The mail address of the account.
    pub mail: String,
    /// The names of the certificate in lower case, at least one, each once.
    pub names: Vec<String>,
    /// The URL of the directory of the authority, with `https`.
    pub directory: String,
    /// The file of the authorities that the certificate of the directory is verified by; `None`
    /// for those of the system.
    pub ca: Option<PathBuf>,
    /// The folder of the state, as configured; `None` for the default.
    pub folder: Option<PathBuf>,
    /// The address for the challenge http-01; `None` if there is none.
    pub http: Option<SocketAddr>,
    /// The profile of the certificate; `None` for the default of the authority.
    pub profile: Option<String>,
    /// The file with the identifier and the key of an external account; `None` without one.
    pub external_account: Option<PathBuf>,
    /// The parts that the program adds. `None` until it has read the files.
    pub content: Option<AcmeContent>,
}

/// The content of the files of [`Acme`], and the state folder with its default.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AcmeContent {
    /// The state folder.
    pub folder: PathBuf,
    /// The authorities that the certificate of the directory is verified by.
    pub roots: Roots,
    /// The identifier of an external account, and the key of its binding.
    pub external_account: Option<(Arc<str>, Arc<[u8]>)>,
}

/// Builds the options of a service with these listeners; `None` without the option `acme`.
pub(super) fn build(
    values: &RawTable,
    listeners: &[Listener],
) -> Result<Option<Acme>, ConfigError> {
    let mail = values.one("acme", parse_mail)?;
    let mut names = values.all("server-name", parse_server_name)?;
    let mut seen = HashSet::new();
    names.retain(|name| seen.insert(name.clone()));
    let directory = values.one_or_default("acme-directory", parse_https_url)?;
    let ca = values.one("acme-ca", value::parse_file_path)?;
    let folder = values.one("acme-dir", value::parse_file_path)?;
    let http = values.one("acme-http", parse_http_address)?;
    let profile = values.one("acme-profile", value::parse_service_name)?;
    let external_account = values.one("acme-eab", value::parse_file_path)?;
    let Some(mail) = mail else {
        let unused = [
            ("server-name", !names.is_empty()),
            ("acme-directory", directory != LETS_ENCRYPT),
            ("acme-ca", ca.is_some()),
            ("acme-dir", folder.is_some()),
            ("acme-http", http.is_some()),
            ("acme-profile", profile.is_some()),
            ("acme-eab", external_account.is_some()),
        ];
        let Some((key, _)) = unused.into_iter().find(|(_, is_given)| *is_given) else {
            return Ok(None);
        };
        let problem = format!("has no effect without {}", values.name_of("acme"));
        let expected = format!("{} MAIL", values.name_of("acme"));
        return Err(ConfigError::rule(values.location_of(key), problem, expected));
    };
    if names.is_empty() {
        let option = values.name_of("server-name");
        let expected = format!("{option} with the names of the certificate");
        let problem = format!("needs {option}");
        return Err(ConfigError::rule(values.location_of("acme"), problem, expected));
    }
    let http = http.unwrap_or_else(|| default_http(listeners));
    if let Some(address) = http.filter(|address| is_listened_on(*address, listeners)) {
        let option = values.name_of("acme-http");
        let place = format!("{option} {address}");
        let problem = format!("is also in {}", values.name_of("listen"));
        let expected =
            format!("{option} off, or no such listener; acme-http redirects to https itself");
        return Err(ConfigError::rule(place, problem, expected));
    }
    let content = None;
    let acme =
        Acme { mail, names, directory, ca, folder, http, profile, external_account, content };
    Ok(Some(acme))
}

/// Returns port 80 of the address of the first listener with TLS.
fn default_http(listeners: &[Listener]) -> Option<SocketAddr> {
    listeners.iter().filter(|listener| listener.tls).find_map(|listener| match listener.address {
        ListenAddress::Tcp(address) => Some(SocketAddr::new(address.ip(), HTTP_PORT)),
        ListenAddress::Unix(_) => None,
    })
}

/// Returns whether a listener of the service has the address, or all addresses of its port.
fn is_listened_on(address: SocketAddr, listeners: &[Listener]) -> bool {
    let is_same = |own: SocketAddr| {
        let is_any = own.ip().is_unspecified() || address.ip().is_unspecified();
        let same_ip = own.ip() == address.ip() || is_any && own.is_ipv4() == address.is_ipv4();
        own.port() == address.port() && own.port() != 0 && same_ip
    };
    listeners.iter().any(|listener| match listener.address {
        ListenAddress::Tcp(own) => is_same(own),
        ListenAddress::Unix(_) => false,
    })
}

/// Writes the options as lines of TOML.
pub(super) fn write(out: &mut String, acme: &Acme) {
    let path = |path: &PathBuf| basic_string(&path.display().to_string());
    write_key(out, "server-name", string_array(acme.names.iter().cloned()));
    write_key(out, "acme", basic_string(&acme.mail));
    write_key(out, "acme-directory", basic_string(&acme.directory));
    if let Some(ca) = &acme.ca {
        write_key(out, "acme-ca", path(ca));
    }
    if let Some(folder) = &acme.folder {
        write_key(out, "acme-dir", path(folder));
    }
    let http = acme.http.map_or_else(|| "off".to_owned(), |address| address.to_string());
    write_key(out, "acme-http", basic_string(&http));
    if let Some(profile) = &acme.profile {
        write_key(out, "acme-profile", basic_string(profile));
    }
    if let Some(file) = &acme.external_account {
        write_key(out, "acme-eab", path(file));
    }
}

/// Parses a mail address: one `@` between parts of printable ASCII characters.
fn parse_mail(text: &str) -> Result<String, Problem> {
    let is_plain = |part: &str| {
        let is_plain = |byte: u8| byte.is_ascii_graphic() && !b"\",;:<>?&%".contains(&byte);
        !part.is_empty() && part.bytes().all(is_plain)
    };
    match text.split_once('@') {
        _ if text.len() > MAIL_BYTES_MAX => Err("is too long"),
        Some((user, host)) if is_plain(user) && is_plain(host) && !host.contains('@') => {
            Ok(text.to_owned())
        }
        _ => Err("is not a mail address"),
    }
}

/// Parses a name of a certificate. A certificate for a wildcard needs a challenge by DNS.
fn parse_server_name(text: &str) -> Result<String, Problem> {
    if text.starts_with("*.") {
        return Err("is a wildcard, which needs a challenge by DNS");
    }
    let name = value::parse_host_name(text)?;
    Ok(name.strip_suffix('.').map(str::to_owned).unwrap_or(name))
}

/// Parses the URL of a directory.
fn parse_https_url(text: &str) -> Result<String, Problem> {
    let Some(rest) = text.strip_prefix("https://") else {
        return Err("does not begin with https://");
    };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    value::parse_origin(&format!("https://{authority}"))?;
    // RFC 3986: the others cannot be part of a URL.
    if !path.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"#<>\\^`{|}".contains(&byte)) {
        return Err("has an invalid path");
    }
    Ok(text.to_owned())
}

fn parse_http_address(text: &str) -> Result<Option<SocketAddr>, Problem> {
    match text {
        "off" => Ok(None),
        _ => value::parse_socket_address(text).map(Some),
    }
}

#[cfg(test)]
mod tests {
    use crate::{from_arguments, from_toml, to_toml};

    #[test]
    fn acme_needs_a_listener_with_tls_and_names() {
        let boost = |words: &str| {
            let words = format!("boost --origin=http://a {words}");
            from_arguments(words.split_whitespace())
        };
        let words = "--listen=tls://[::1]:443 --acme=a@b.example --server-name=B.example.";
        let config = boost(words).unwrap();
        let acme = config.services[0].tls.as_ref().unwrap().acme.as_ref().unwrap();
        assert_eq!(acme.names, ["b.example"]);
        assert_eq!(acme.http, Some("[::1]:80".parse().unwrap()));
        assert_eq!(from_toml(&to_toml(&config)), Ok(config.clone()));
        let both = boost(&format!("--listen=tls://0.0.0.0:443 {words}")).unwrap();
        let acme = both.services[0].tls.as_ref().unwrap().acme.as_ref().unwrap();
        assert_eq!(acme.http, Some("0.0.0.0:80".parse().unwrap()));
        let all = format!(
            "{words} --acme-directory=https://a:1/dir --acme-ca=ca --acme-dir=/d --acme-http=off \
             --acme-profile=short --acme-eab=eab --server-name=c.example --server-name=b.example"
        );
        let config = boost(&all).unwrap();
        assert_eq!(from_toml(&to_toml(&config)), Ok(config.clone()));
        let acme = config.services[0].tls.as_ref().unwrap().acme.as_ref().unwrap();
        assert_eq!((acme.names.len(), acme.http), (2, None));
        for (words, message) in [
            ("--acme=a@b --server-name=b", "--acme: --acme has no effect: no listener uses TLS"),
            ("--listen=tls://[::1]:1 --acme=a@b", "--acme: needs --server-name"),
            ("--acme=a@b --acme-directory=https://a/<b>", "\"https://a/<b>\" has an invalid path"),
            ("--acme-http=off", "--acme-http: has no effect without --acme"),
            ("--server-name=a", "--server-name: has no effect without --acme"),
            (
                "--listen=tls://[::1]:1 --listen=[::]:80 --acme=a@b --server-name=b",
                "--acme-http [::1]:80: is also in --listen (expected: --acme-http off, or no \
                 such listener; acme-http redirects to https itself)",
            ),
            (
                "--listen=tls://[::1]:1 --acme-http=[::1]:1 --acme=a@b --server-name=b",
                "--acme-http [::1]:1: is also in --listen",
            ),
            (
                "--listen=tls://[::1]:1 --acme=a@b --server-name=b --certificate=a --key=b",
                "--certificate: cannot be combined with --acme",
            ),
        ] {
            let error = boost(words).unwrap_err().to_string();
            assert!(error.contains(message), "{words}: {error}");
        }
    }
}
