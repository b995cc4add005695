//! Loads the certificates of services with TLS. They are read together with the configuration, so
//! that their errors are reported with it.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use millrace_config::{CertificateFiles, Config, ConfigError, RawConfig};
use millrace_tls::{Aead, Certificate, CertificateError, Provider};

/// Read permission for users other than the owner and the group of a file.
const READABLE_BY_OTHERS: u32 = 0o004;
/// The most bytes of a certificate chain or a key.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Reads the certificates of each service in `config` that uses TLS. `raw` is the source of
/// `config`.
///
/// # Errors
/// The first error, with the name of the file.
pub(crate) fn load(config: &mut Config, raw: &RawConfig) -> Result<(), ConfigError> {
    let provider = Provider::new(Aead::fastest());
    for tls in config.services.iter_mut().filter_map(|service| service.tls.as_mut()) {
        let certificates = tls.files.iter().map(|files| read(files, raw, &provider));
        tls.certificates = Some(certificates.collect::<Result<Arc<[_]>, _>>()?);
    }
    Ok(())
}

fn read(
    files: &CertificateFiles,
    raw: &RawConfig,
    provider: &Provider,
) -> Result<Certificate, ConfigError> {
    let error = |option: &str, path: &Path, problem: String, expected: &str| {
        let place = format!("{} {}", raw.name_of(option), path.display());
        ConfigError::rule(place, problem, expected)
    };
    let of_chain = |problem| error("certificate", &files.chain, problem, CHAIN_EXPECTED);
    let of_key = |problem| error("key", &files.key, problem, KEY_EXPECTED);
    let chain = read_file(&files.chain, 0).map_err(of_chain)?;
    let key = read_file(&files.key, READABLE_BY_OTHERS).map_err(of_key)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let certificate = Certificate::from_pem(&chain, &key, provider);
    let certificate = certificate.and_then(|it| it.check_time(now).map(|()| it));
    certificate.map_err(|wrong| match wrong {
        CertificateError::Chain(problem) => of_chain(problem),
        CertificateError::Key(problem) => of_key(problem),
    })
}

const CHAIN_EXPECTED: &str = "a PEM file with a valid certificate and its chain";
const KEY_EXPECTED: &str = "a PEM file with the private key of the certificate, which only its \
                            owner and group can read";

/// Reads a regular file that has none of the permissions in `refused`.
fn read_file(path: &Path, refused: u32) -> Result<Vec<u8>, String> {
    let to_text = |error: std::io::Error| error.to_string();
    // Checked before opening: opening a pipe would wait for its writer.
    if !std::fs::metadata(path).map_err(to_text)?.is_file() {
        return Err("is not a regular file".to_owned());
    }
    let file = File::open(path).map_err(to_text)?;
    let found = file.metadata().map_err(to_text)?;
    if !found.is_file() || found.mode() & refused != 0 {
        return Err(format!("is readable by other users (mode {:o})", found.mode() & 0o777));
    }
    let mut bytes = Vec::new();
    // Reading one byte more than allowed detects a file that is too long.
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(to_text)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("has more than {FILE_BYTES_MAX} bytes"));
    }
    Ok(bytes)
}
