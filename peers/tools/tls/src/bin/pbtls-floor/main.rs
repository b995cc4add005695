//! `pbtls-floor`: epoll and rustls without HTTP rules, the floor of cases over TLS.

#![forbid(unsafe_code)]

mod relay;
mod serve;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use pbtls::provider::{GROUPS, Pinned, certificates, private_key, provider};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustls::client::Resumption;
use rustls::crypto::aws_lc_rs::Ticketer;
use rustls::version::TLS13;
use rustls::{ClientConfig, ServerConfig};

const HELP: &str = "\
pbtls-floor PORT CERTIFICATE KEY: a server on 127.0.0.1 that responds as pborigin does:
  GET /c/SIZE...  cacheable (max-age=86400)      SIZE = 1k 8k 64k 1m, or a number of bytes
  GET /n/SIZE...  Cache-Control: no-store
  GET /stat       requests served so far (not counting /stat) and the sum of their targets' hashes
pbtls-floor PORT CERTIFICATE KEY ORIGIN_PORT ORIGIN_CERTIFICATE: a relay with TLS on both sides,
  with one connection to the origin for each of a client; it passes on what it decrypts.
TLS 1.3 with x25519, p256 and x25519mlkem768, and one ticket for each handshake.";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.iter().any(|word| word == "--help") {
        println!("{HELP}");
        return ExitCode::SUCCESS;
    }
    match run(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pbtls-floor: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(words: &[String]) -> io::Result<()> {
    let limit = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: limit, maximum: limit })?;
    match words {
        [port, certificate, key] => serve::run(number(port)?, server_config(certificate, key)?),
        [port, certificate, key, origin_port, origin] => relay::run(
            number(port)?,
            server_config(certificate, key)?,
            number(origin_port)?,
            client_config(origin)?,
        ),
        _ => Err(io::Error::other("expected: see --help")),
    }
}

fn number(word: &str) -> io::Result<u16> {
    word.parse()
        .map_err(|_| io::Error::other(format!("invalid port \"{word}\" (expected: 1-65535)")))
}

fn server_config(certificate: &str, key: &str) -> io::Result<Arc<ServerConfig>> {
    let groups = GROUPS.map(|(_, group)| group).to_vec();
    let chain = certificates(&PathBuf::from(certificate))?;
    let mut config = ServerConfig::builder_with_provider(provider(groups))
        .with_protocol_versions(&[&TLS13])
        .map_err(io::Error::other)?
        .with_no_client_auth()
        .with_single_cert(chain, private_key(&PathBuf::from(key))?)
        .map_err(io::Error::other)?;
    config.ticketer = Ticketer::new().map_err(io::Error::other)?;
    config.send_tls13_tickets = 1;
    Ok(Arc::new(config))
}

/// For the side of the origin, which has to present this certificate.
fn client_config(origin: &str) -> io::Result<Arc<ClientConfig>> {
    let provider = provider(vec![GROUPS[0].1]);
    let certificate = certificates(&PathBuf::from(origin))?.swap_remove(0);
    let verifier = Pinned { certificate, provider: Arc::clone(&provider) };
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(io::Error::other)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}
