//! Loads the certificates of services and of connections to origins with TLS. They are read
//! together with the configuration, so that their errors are reported with it.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use millrace_config::{
    Acme, AcmeContent, CertificateFiles, ClientCertificateRules, Config, ConfigError, OriginTls,
    OriginTlsContent, RawConfig, Service, Tls,
};
use millrace_tls::{
    Aead, Certificate, CertificateError, ClientCertificates, Provider, RevocationLists, Roots,
    TicketKeys,
};

use crate::acme::{report, state};
use crate::console;

/// Read permission for users other than the owner and the group of a file.
const READABLE_BY_OTHERS: u32 = 0o004;
/// The longest time before expiry at which a certificate is reported.
const EXPIRY_NOTE_MAX: Duration = Duration::from_secs(14 * 86_400);
/// The most bytes of a certificate chain or a key.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// The most bytes of a file with revocation lists: about 400,000 certificates.
const LISTS_BYTES_MAX: u64 = 16 << 20;

/// Reads the certificates of each service and route in `config` that uses TLS. `raw` is the source
/// of `config`.
///
/// # Errors
/// The first error, with the name of the file.
pub(crate) fn load(config: &mut Config, raw: &RawConfig) -> Result<(), ConfigError> {
    // Read now even if only a later reload needs them: the sandbox may hide them then.
    system_authorities();
    // The sandbox forbids them in another way, too.
    if has_keys(config)
        && let Err(error) = millrace_confine::forbid_core_dumps()
        && !config.sandbox
    {
        let error = std::io::Error::from(error);
        console::log(&format!("core dumps cannot be forbidden, and may contain keys: {error}"));
    }
    let provider = Provider::new(Aead::fastest());
    for tls in config.services.iter_mut().filter_map(|service| service.tls.as_mut()) {
        if let Some(acme) = &mut tls.acme {
            acme.content = Some(read_acme_content(acme, raw)?);
        }
        let options = ["certificate", "key"];
        let certificates = tls.files.iter().map(|files| read(files, options, raw, &provider));
        tls.certificates = Some(certificates.collect::<Result<Arc<[_]>, _>>()?);
        if let Some(rules) = &mut tls.client_certificates {
            rules.content = Some(read_client_certificates(rules, raw, &provider)?);
        }
        tls.ticket_keys = read_ticket_keys(&tls.ticket_files, raw)?;
    }
    load_ordered(config);
    for route in config.services.iter_mut().flat_map(Service::routes_mut) {
        if let Some(tls) = &mut route.origin_tls {
            let content = read_origin_content(tls, ["origins", "origin-ca"], raw, &provider)?;
            Arc::make_mut(tls).content = Some(content);
        }
    }
    if let Some(tls) = &mut config.admin_tls {
        let options = ["admin-certificate", "admin-key"];
        tls.certificate = Some(read(&tls.files, options, raw, &provider)?);
    }
    for tls in config.services.iter_mut().filter_map(|service| service.fetch_tls.as_mut()) {
        let content = read_origin_content(tls, ["fetch-https", "fetch-ca"], raw, &provider)?;
        Arc::make_mut(tls).content = Some(content);
    }
    Ok(())
}

/// Reads the certificates that were ordered by ACME. One that cannot be used counts as missing: a
/// new one is ordered. Until it arrives, the certificate that `config` has stays; without one, a
/// stored certificate for other names or of another authority serves.
pub(crate) fn load_ordered(config: &mut Config) {
    let provider = Provider::new(Aead::fastest());
    for tls in config.services.iter_mut().filter_map(|service| service.tls.as_mut()) {
        let Some(acme) = &tls.acme else { continue };
        let Some(content) = &acme.content else { continue };
        let path = state::certificate_path(&content.folder, acme);
        let found = read_ordered(&path, &provider).map(|certificate| (path.clone(), certificate));
        let found = match found {
            None if has_certificate(tls) => continue,
            None => find_substitute(acme, content, &provider),
            found => found,
        };
        let (file, certificate) = found.unzip();
        let path = file.unwrap_or(path);
        tls.files = vec![CertificateFiles { chain: path.clone(), key: path }];
        tls.certificates = Some(certificate.into_iter().collect());
    }
}

/// Keeps the certificates that `last`, the configuration in force, has for services whose ordered
/// certificate is missing.
pub(crate) fn keep_ordered(config: &mut Config, last: &Config) {
    for Service { name, tls, .. } in &mut config.services {
        let tls = tls.as_mut().filter(|tls| tls.acme.is_some() && !has_certificate(tls));
        let last = last.services.iter().find(|service| service.name == *name);
        if let (Some(tls), Some(last)) = (tls, last.and_then(|service| service.tls.as_ref())) {
            (tls.files, tls.certificates) = (last.files.clone(), last.certificates.clone());
        }
    }
}

fn has_certificate(tls: &Tls) -> bool {
    tls.certificates.as_ref().is_some_and(|certificates| !certificates.is_empty())
}

fn read_ordered(path: &Path, provider: &Provider) -> Option<Certificate> {
    let pem = read_file(path, READABLE_BY_OTHERS).ok()?;
    Certificate::from_pem(&pem, &pem, provider).ok()
}

/// Returns the stored certificate with most of the names of `acme`, so that these names are served
/// while a certificate for a changed list of names, or of another authority, is ordered. The
/// certificates of the configured authority come first: those of another one may be for tests.
fn find_substitute(
    acme: &Acme,
    content: &AcmeContent,
    provider: &Provider,
) -> Option<(PathBuf, Certificate)> {
    let now = time_of_day();
    let names =
        |it: &Certificate| acme.names.iter().filter(|name| it.names().contains(name)).count();
    let files = std::fs::read_dir(&content.folder).ok()?;
    let files = files.filter_map(|entry| entry.ok().map(|entry| entry.path()));
    files
        .filter(|path| path.extension().is_some_and(|ending| ending == "pem"))
        .filter_map(|path| read_ordered(&path, provider).map(|certificate| (path, certificate)))
        .filter(|(_, certificate)| certificate.check_time(now).is_ok() && names(certificate) > 0)
        .max_by_key(|(path, certificate)| {
            let is_own = state::is_of_authority(path, acme);
            (is_own, names(certificate), certificate.not_after())
        })
}

/// The state folder without a service manager that sets one.
const STATE_FOLDER: &str = "/var/lib/millrace/acme";

/// Returns the state folder by default. systemd.exec(5): the variable has a list of absolute paths.
pub(crate) fn default_state_folder() -> PathBuf {
    let of_manager = std::env::var("STATE_DIRECTORY").ok();
    let first = of_manager.as_deref().and_then(|list| list.split(':').next());
    match first.filter(|path| path.starts_with('/')) {
        Some(path) => Path::new(path).join("acme"),
        None => STATE_FOLDER.into(),
    }
}

/// Reads the files that orders need.
fn read_acme_content(acme: &Acme, raw: &RawConfig) -> Result<AcmeContent, ConfigError> {
    let [needing, ca_option] = ["acme", "acme-ca"].map(|option| raw.name_of(option));
    let roots = read_roots(&ca_option, acme.ca.as_deref(), &needing)?;
    let external_account = acme.external_account.as_ref().map(|path| {
        let parsed = read_file(path, READABLE_BY_OTHERS).and_then(|text| parse_account(&text));
        let place = format!("{} {}", raw.name_of("acme-eab"), path.display());
        let expected = "a file with two words, the key identifier and the key in Base64url, which \
                        only its owner and group can read";
        parsed.map_err(|problem| ConfigError::rule(place, problem, expected))
    });
    let folder = acme.folder.clone().unwrap_or_else(default_state_folder);
    Ok(AcmeContent { folder, roots, external_account: external_account.transpose()? })
}

/// Parses the identifier and the key of an external account.
fn parse_account(text: &[u8]) -> Result<(Arc<str>, Arc<[u8]>), String> {
    let text = std::str::from_utf8(text).map_err(|_| "is not UTF-8")?;
    let words: Vec<&str> = text.split_whitespace().collect();
    let [identifier, key] = words[..] else { return Err(format!("has {} words", words.len())) };
    let key = URL_SAFE_NO_PAD.decode(key.trim_end_matches('='));
    let key = key.map_err(|_| "has a key that is not Base64url")?;
    Ok((identifier.into(), key.into()))
}

/// Returns whether a process with this configuration has keys of TLS in its memory.
fn has_keys(config: &Config) -> bool {
    let has_tls = |it: &Service| it.tls.is_some() || it.origin_tls().next().is_some();
    config.admin_tls.is_some() || config.services.iter().any(has_tls)
}

/// Reads the keys of session tickets. `None` if there are no files.
fn read_ticket_keys(files: &[PathBuf], raw: &RawConfig) -> Result<Option<TicketKeys>, ConfigError> {
    let mut keys = TicketKeys::default();
    for path in files {
        let added = read_file(path, READABLE_BY_OTHERS)
            .and_then(|file| keys.add_file(&file).map_err(|error| error.to_string()));
        let place = format!("{} {}", raw.name_of("ticket-key-file"), path.display());
        let expected = "48 or 80 random bytes for each of at most 3 keys, in a file that only its \
                        owner and group can read";
        added.map_err(|problem| ConfigError::rule(place, problem, expected))?;
    }
    Ok((!files.is_empty()).then_some(keys))
}

/// Reads the files that connections to origins need. The options name the origins and their
/// authorities.
fn read_origin_content(
    tls: &OriginTls,
    [origins_option, ca_option]: [&str; 2],
    raw: &RawConfig,
    provider: &Provider,
) -> Result<OriginTlsContent, ConfigError> {
    let [needing, ca_option] = [origins_option, ca_option].map(|option| raw.name_of(option));
    let roots = tls.verify.then(|| read_roots(&ca_option, tls.ca.as_deref(), &needing));
    let roots = roots.transpose()?;
    let certificate = tls.certificate.as_ref();
    let options = ["origin-certificate", "origin-key"];
    let certificate = certificate.map(|files| read(files, options, raw, provider)).transpose()?;
    Ok(OriginTlsContent { roots, certificate })
}

/// Reads the files by which certificates of clients are verified.
fn read_client_certificates(
    rules: &ClientCertificateRules,
    raw: &RawConfig,
    provider: &Provider,
) -> Result<ClientCertificates, ConfigError> {
    let error = |path: &Path, problem: String| {
        let place = format!("{} {}", raw.name_of("client-crl"), path.display());
        ConfigError::rule(place, problem, "a PEM file with valid revocation lists (CRL)")
    };
    let option = raw.name_of("client-ca");
    let roots = rules.authorities.iter().map(|path| read_roots(&option, Some(path), ""));
    let roots = Roots::union(roots.collect::<Result<Vec<_>, _>>()?);
    let create = |lists| {
        ClientCertificates::new(rules.mode, roots.clone(), lists, &rules.names, provider)
            .map_err(|wrong| wrong.to_string())
    };
    let mut lists = Vec::new();
    for path in &rules.revocation_lists {
        let parse = |pem: Vec<u8>| {
            let list = RevocationLists::from_pem(&pem)?;
            list.check_time(time_of_day()).map(|()| list)
        };
        let list = read_file_to(path, 0, LISTS_BYTES_MAX)
            .and_then(|pem| parse(pem).map_err(|wrong| wrong.to_string()))
            // Finds the file whose list cannot be used.
            .and_then(|list| create(vec![list.clone()]).map(|_| list));
        lists.push(list.map_err(|problem| error(path, problem))?);
    }
    create(lists).map_err(|problem| {
        let place = raw.name_of("client-certificate").into_owned();
        ConfigError::rule(place, problem, "authorities and revocation lists that can be used")
    })
}

/// Reads the authorities in a file, the value of `ca_option`. Without a file, returns those of the
/// system, which the option `needing` needs.
///
/// # Errors
/// If the file cannot be read, or there is no authority.
pub(crate) fn read_roots(
    ca_option: &str,
    file: Option<&Path>,
    needing: &str,
) -> Result<Roots, ConfigError> {
    let Some(path) = file else { return system_roots(ca_option, needing) };
    let roots =
        read_file(path, 0).and_then(|pem| Roots::from_pem(&pem).map_err(|error| error.to_string()));
    let place = format!("{ca_option} {}", path.display());
    let expected = "a PEM file with certificates of authorities";
    roots.map_err(|problem| ConfigError::rule(place, problem, expected))
}

/// Returns the authorities of the system, none if none are installed. They are read once.
fn system_authorities() -> &'static Roots {
    static ROOTS: OnceLock<Roots> = OnceLock::new();
    ROOTS.get_or_init(|| {
        let found = rustls_native_certs::load_native_certs();
        Roots::from_der(found.certs.into_iter().map(|certificate| certificate.to_vec()))
    })
}

/// Returns the authorities of the system, which the option `needing` needs without `ca_option`.
fn system_roots(ca_option: &str, needing: &str) -> Result<Roots, ConfigError> {
    let roots = system_authorities();
    if roots.is_empty() {
        let problem = "needs the authorities of the system, and none is installed";
        let expected = format!("the package ca-certificates, or {ca_option}");
        return Err(ConfigError::rule(needing, problem, expected));
    }
    Ok(roots.clone())
}

/// Returns a note for each certificate that expires soon, names no host, has an unknown issuer or
/// an RSA key, and for each name without a certificate.
pub(crate) fn notes(config: &Config) -> Vec<String> {
    let now = time_of_day();
    let mut notes = Vec::new();
    for (files, certificate) in loaded(config) {
        let name = files.chain.display();
        if let Some(left) = expires_soon(certificate, now) {
            notes.push(format!("certificate {name} expires in {}", format_left(left)));
        }
        if !certificate.has_host() {
            notes.push(format!(
                "certificate {name} names no host (subjectAltName): clients refuse it"
            ));
        }
        if let Some(problem) = issuer_problem(certificate)
            && !has_private_authority(config, files)
        {
            notes.push(format!("certificate {name} {problem}"));
        }
        if certificate.is_rsa() {
            notes.push(format!(
                "certificate {name} has an RSA key: a signature takes 0.7 ms, with an ECDSA key \
                 0.03 ms"
            ));
        }
    }
    let services = config.services.iter().filter_map(|service| service.tls.as_ref());
    notes.extend(services.flat_map(names_without_certificate).map(|name| {
        format!("client-certificate-name {name}: no certificate of the service is for this name")
    }));
    notes
}

/// Returns why clients that only know the authorities of this system reject a certificate, as a
/// text that follows its name.
fn issuer_problem(certificate: &Certificate) -> Option<String> {
    let roots = system_authorities();
    // Without authorities, each issuer would seem unknown.
    let issuer = certificate.missing_issuer(roots).filter(|_| !roots.is_empty())?;
    let unknown = format!("\"{issuer}\", which is no authority of this system: clients");
    Some(match certificate.has_issuer() {
        true => format!("ends at {unknown} need that root"),
        false => format!(
            "lacks its issuer {unknown} that do not know it refuse the certificate (expected: the \
             whole chain)"
        ),
    })
}

/// Returns whether a certificate was ordered by ACME from an authority that only the configuration
/// knows.
fn has_private_authority(config: &Config, files: &CertificateFiles) -> bool {
    let mut services = config.services.iter().filter_map(|service| service.tls.as_ref());
    services.any(|tls| {
        tls.acme.as_ref().is_some_and(|acme| acme.ca.is_some()) && tls.files.contains(files)
    })
}

/// Returns the names for which certificates of clients are requested although no certificate of the
/// service is for them: no client connects to them.
fn names_without_certificate(tls: &Tls) -> impl Iterator<Item = &str> {
    let certificates = tls.certificates.iter().flat_map(|it| &**it);
    let own: Vec<&str> = certificates.flat_map(Certificate::names).map(String::as_str).collect();
    let is_missing = move |name: &&str| {
        let parent = name.split_once('.').map(|(_, parent)| parent);
        !own.is_empty()
            && !own.iter().any(|own| match name.strip_prefix('*') {
                Some(suffix) => own.ends_with(suffix),
                None => own == name || own.strip_prefix("*.").is_some_and(|it| Some(it) == parent),
            })
    };
    let rules = tls.client_certificates.iter();
    rules.flat_map(|it| &it.names).map(String::as_str).filter(is_missing)
}

/// Returns a line about the names and the validity of each certificate.
pub(crate) fn validity(config: &Config) -> Vec<String> {
    let now = time_of_day();
    let line = |(files, certificate): (&CertificateFiles, &Certificate)| {
        let mut names = certificate.names().join(", ");
        if !names.is_empty() {
            names.insert_str(0, " for ");
        }
        let left = format_left(certificate.not_after().saturating_sub(now));
        format!("certificate {}{names}: expires in {left}", files.chain.display())
    };
    loaded(config).map(line).chain(report::failures(config)).collect()
}

/// When a certificate expires.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct CertificateExpiry {
    /// The name of the service.
    pub(crate) service: String,
    /// The file of the certificate.
    pub(crate) certificate: String,
    /// The time of expiry, in seconds since 1970.
    pub(crate) seconds: u64,
}

/// Returns when each certificate that was read expires.
pub(crate) fn expiries(config: &Config) -> Vec<CertificateExpiry> {
    let mut rows = Vec::new();
    for service in &config.services {
        let Some(tls) = &service.tls else { continue };
        let certificates = tls.certificates.iter().flat_map(|it| &**it);
        for (files, certificate) in tls.files.iter().zip(certificates) {
            rows.push(CertificateExpiry {
                service: service.name.as_str().to_owned(),
                certificate: files.chain.display().to_string(),
                seconds: certificate.not_after().as_secs(),
            });
        }
    }
    rows
}

/// Returns the certificates that were read, with their files.
fn loaded(config: &Config) -> impl Iterator<Item = (&CertificateFiles, &Certificate)> {
    let services = config.services.iter().filter_map(|service| service.tls.as_ref());
    let of_services =
        services.flat_map(|tls| tls.files.iter().zip(tls.certificates.iter().flat_map(|it| &**it)));
    let admin = config.admin_tls.iter();
    of_services.chain(admin.flat_map(|tls| tls.certificate.iter().map(move |it| (&tls.files, it))))
}

/// Returns the time until a certificate expires if it is short: at most 14 days, or a third of the
/// whole time of validity if that is shorter.
fn expires_soon(certificate: &Certificate, now: Duration) -> Option<Duration> {
    let whole = certificate.not_after().saturating_sub(certificate.not_before());
    let left = certificate.not_after().saturating_sub(now);
    (left <= (whole / 3).min(EXPIRY_NOTE_MAX)).then_some(left)
}

fn format_left(left: Duration) -> String {
    let hours = left.as_secs() / 3600;
    if hours < 48 { format!("{hours} hours") } else { format!("{} days", hours / 24) }
}

fn time_of_day() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn read(
    files: &CertificateFiles,
    [chain_option, key_option]: [&str; 2],
    raw: &RawConfig,
    provider: &Provider,
) -> Result<Certificate, ConfigError> {
    let error = |option: &str, path: &Path, problem: String, expected: &str| {
        let place = format!("{} {}", raw.name_of(option), path.display());
        ConfigError::rule(place, problem, expected)
    };
    let of_chain = |problem| error(chain_option, &files.chain, problem, CHAIN_EXPECTED);
    let of_key = |problem| error(key_option, &files.key, problem, KEY_EXPECTED);
    let chain = read_file(&files.chain, 0).map_err(of_chain)?;
    let key = read_file(&files.key, READABLE_BY_OTHERS).map_err(of_key)?;
    let now = time_of_day();
    let certificate = Certificate::from_pem(&chain, &key, provider);
    let certificate = certificate.and_then(|it| it.check_time(now).map(|()| it));
    certificate.map_err(|wrong| match wrong {
        CertificateError::Chain(problem) => of_chain(problem),
        CertificateError::Key(problem) => of_key(problem),
        CertificateError::Mismatch => {
            let problem = format!("is not the key of certificate {}", files.chain.display());
            error(key_option, &files.key, problem, MATCH_EXPECTED)
        }
    })
}

const CHAIN_EXPECTED: &str = "a PEM file with a valid certificate and its chain";
const KEY_EXPECTED: &str = "a PEM file with the private key of the certificate, which only its \
                            owner and group can read";
const MATCH_EXPECTED: &str = "its key; keys are in the order of the certificates";

/// Reads a regular file that has none of the permissions in `refused`.
fn read_file(path: &Path, refused: u32) -> Result<Vec<u8>, String> {
    read_file_to(path, refused, FILE_BYTES_MAX)
}

/// Like [`read_file`], for files of at most `bytes_max`.
fn read_file_to(path: &Path, refused: u32, bytes_max: u64) -> Result<Vec<u8>, String> {
    const SPECIAL: &str = "is not a regular file";
    let to_text = |error: std::io::Error| match error.kind() {
        // A file of the kernel, such as /proc/kmsg, which would wait for more bytes.
        ErrorKind::WouldBlock => SPECIAL.to_owned(),
        _ => error.to_string(),
    };
    // Checked before opening: opening a device may change it.
    if !std::fs::metadata(path).map_err(to_text)?.is_file() {
        return Err(SPECIAL.to_owned());
    }
    let file = millrace_sys::open_to_read(path).map_err(|error| to_text(error.into()))?;
    let file = File::from(file);
    let found = file.metadata().map_err(to_text)?;
    if !found.is_file() {
        return Err(SPECIAL.to_owned());
    }
    if found.mode() & refused != 0 {
        return Err(format!("is readable by other users (mode {:o})", found.mode() & 0o777));
    }
    let mut bytes = Vec::new();
    // Reading one byte more than allowed detects a file that is too long.
    file.take(bytes_max + 1).read_to_end(&mut bytes).map_err(to_text)?;
    if bytes.len() as u64 > bytes_max {
        return Err(format!("has more than {bytes_max} bytes"));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    /// Stores a certificate for `names` as ACME does, and returns its file.
    fn store(folder: &Path, file: &str, names: &[&str], year: i32) -> PathBuf {
        let key = KeyPair::generate().unwrap();
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.not_after = date_time_ymd(year, 1, 1);
        let chain = params.self_signed(&key).unwrap().pem();
        let path = folder.join(file);
        std::fs::write(&path, format!("{}{chain}", key.serialize_pem())).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        path
    }

    fn config(folder: &Path, names: &str) -> Config {
        let words = format!("boost --origin=http://a --listen=tls://[::1]:1 --acme=a@b {names}");
        let mut config = millrace_config::from_arguments(words.split(' ')).unwrap();
        let tls = config.services[0].tls.as_mut().unwrap();
        let key = store(folder, "root.txt", &["root"], 2200);
        let roots = Roots::from_pem(&std::fs::read(key).unwrap()).unwrap();
        let content = AcmeContent { folder: folder.to_owned(), roots, external_account: None };
        tls.acme.as_mut().unwrap().content = Some(content);
        config
    }

    #[test]
    fn a_certificate_of_the_configured_authority_comes_first() {
        let name = format!("millrace-authorities-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).unwrap();
        let mut config = config(&folder, "--server-name=a.test --server-name=b.test");
        let staging = "a.test@acme-staging-v02.api.letsencrypt.org_directory.pem";
        store(&folder, staging, &["a.test", "b.test"], 2200);
        let real = "a.test@acme-v02.api.letsencrypt.org_directory.pem";
        let real = store(&folder, real, &["a.test"], 2100);
        load_ordered(&mut config);
        std::fs::remove_dir_all(folder).unwrap();
        assert_eq!(config.services[0].tls.as_ref().unwrap().files[0].chain, real);
    }

    #[test]
    fn the_best_stored_certificate_serves_until_the_ordered_one_arrives() {
        let folder = std::env::temp_dir().join(format!("millrace-ordered-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let mut config = config(&folder, "--server-name=a.test --server-name=b.test");
        let mut load = || {
            load_ordered(&mut config);
            let tls = config.services[0].tls.as_ref().unwrap();
            let certificate = tls.certificates.as_deref().and_then(<[_]>::first).cloned();
            (tls.files[0].chain.clone(), certificate.map(|it| it.names().to_vec()))
        };
        let own = load().0;
        store(&folder, "other.pem", &["c.test"], 2200);
        store(&folder, "expired.pem", &["a.test", "b.test"], 2001);
        assert_eq!(load(), (own.clone(), None));
        let names = |names: &[&str]| Some(names.iter().map(|name| (*name).to_owned()).collect());
        let former = store(&folder, "a.test@authority.pem", &["a.test"], 2200);
        assert_eq!(load(), (former.clone(), names(&["a.test"])));
        let file = own.file_name().and_then(|name| name.to_str()).unwrap();
        store(&folder, file, &["a.test", "b.test"], 2200);
        assert_eq!(load(), (own.clone(), names(&["a.test", "b.test"])));
        // A file that cannot be read now replaces nothing.
        std::fs::set_permissions(&own, std::fs::Permissions::from_mode(0o604)).unwrap();
        assert_eq!(load(), (own, names(&["a.test", "b.test"])));
        let mut reloaded = config.clone();
        let tls = reloaded.services[0].tls.as_mut().unwrap();
        (tls.files, tls.certificates) = (Vec::new(), Some(Arc::default()));
        std::fs::remove_dir_all(folder).unwrap();
        load_ordered(&mut reloaded);
        assert!(!has_certificate(reloaded.services[0].tls.as_ref().unwrap()));
        keep_ordered(&mut reloaded, &config);
        assert_eq!(reloaded.services, config.services);
    }
}
