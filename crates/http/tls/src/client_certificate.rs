//! Certificates of clients: the names that request them, and their verification.

use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, SignatureScheme};
use x509_parser::prelude::{CertificateRevocationList, FromDer, X509Certificate};

use crate::error::{CertificateError, days_text};
use crate::name_map::NameMap;
use crate::pem;
use crate::provider::Provider;
use crate::roots::Roots;

/// Whether a client has to present a certificate.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ClientCertificateMode {
    /// A client may do without. A certificate that is not valid fails the handshake.
    Optional,
    /// A client without a valid certificate fails the handshake.
    Required,
}

/// How certificates are requested from clients. Clones are cheap.
#[derive(Clone, Debug)]
pub struct ClientCertificates {
    mode: ClientCertificateMode,
    /// The names for which certificates are requested; empty for all.
    names: NameMap<()>,
    roots: Roots,
    revoked: Vec<RevocationLists>,
    pub(crate) verifier: Arc<dyn ClientCertVerifier>,
}

impl PartialEq for ClientCertificates {
    fn eq(&self, other: &Self) -> bool {
        // The verifier is made of the others.
        (self.mode, &self.names, &self.roots, &self.revoked)
            == (other.mode, &other.names, &other.roots, &other.revoked)
    }
}

impl Eq for ClientCertificates {}

impl ClientCertificates {
    /// Creates the request for certificates that `roots` have issued. They are requested for the
    /// `names` of servers, or wildcards of the form `*.NAME`; for all if there are none. A wildcard
    /// covers every name below NAME at any depth, so that no deeper name evades the request.
    ///
    /// With revocation lists, each certificate of a chain but the root needs a list of its issuer
    /// that has not expired, as in nginx.
    ///
    /// # Errors
    /// If there are no roots, or a list has content that cannot be checked.
    pub fn new(
        mode: ClientCertificateMode,
        roots: Roots,
        revoked: Vec<RevocationLists>,
        names: &[String],
        provider: &Provider,
    ) -> Result<Self, CertificateError> {
        let crypto = provider.crypto().clone();
        let mut builder =
            WebPkiClientVerifier::builder_with_provider(roots.store().clone(), crypto)
                .with_crls(revoked.iter().flat_map(|lists| lists.lists.iter().cloned()))
                .enforce_revocation_expiration();
        if mode == ClientCertificateMode::Optional {
            builder = builder.allow_unauthenticated();
        }
        let verifier = builder.build().map_err(|error| {
            CertificateError::Chain(match error {
                VerifierBuilderError::InvalidCrl(error) => {
                    format!("has an unusable revocation list: {error:?}")
                }
                error => format!("cannot be used: {error}"),
            })
        })?;
        let verifier = Arc::new(BoundedVerifier(verifier));
        let mut by_name = NameMap::default();
        for name in names {
            *by_name.entry(name) = ();
        }
        Ok(Self { mode, names: by_name, roots, revoked, verifier })
    }

    /// Returns how a certificate is requested from a client that asks for a name in lower case, or
    /// for none; `None` if it is not.
    pub(crate) fn mode_of(&self, name: Option<&str>) -> Option<ClientCertificateMode> {
        let is_named = || name.is_some_and(|name| self.names.covers(name));
        (self.names.is_empty() || is_named()).then_some(self.mode)
    }
}

/// The most certificates that a client may present.
const CHAIN_LENGTH_MAX: usize = 8;
/// The most bytes of these certificates together. Origins receive them in fields, in Base64, and
/// few accept more than 32 KB of fields.
const CHAIN_BYTES_MAX: usize = 16 * 1024;

/// A verifier of chains of a bounded size.
#[derive(Debug)]
struct BoundedVerifier(Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for BoundedVerifier {
    fn verify_client_cert(
        &self,
        own: &CertificateDer<'_>,
        issuers: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let bytes: usize = issuers.iter().map(|issuer| issuer.len()).sum();
        if issuers.len() >= CHAIN_LENGTH_MAX || own.len() + bytes > CHAIN_BYTES_MAX {
            return Err(rustls::CertificateError::ApplicationVerificationFailure.into());
        }
        self.0.verify_client_cert(own, issuers, now)
    }

    fn offer_client_auth(&self) -> bool {
        self.0.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.0.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        own: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, own, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        own: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, own, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

/// Returns those of the `sent` certificates of a client without which its own is not valid, its own
/// first, each issued by the next. Rustls does not return the path that it verified, and a client
/// may send certificates that are not part of it.
pub(crate) fn needed_chain<'a>(
    verifier: &dyn ClientCertVerifier,
    sent: &'a [CertificateDer<'a>],
    now: UnixTime,
) -> Vec<&'a [u8]> {
    let Some((own, issuers)) = sent.split_first() else { return Vec::new() };
    let is_enough =
        |issuers: &[CertificateDer<'_>]| verifier.verify_client_cert(own, issuers, now).is_ok();
    let mut chain = vec![own.as_ref()];
    if is_enough(&[]) {
        return chain;
    }
    let mut needed = issuers.to_vec();
    for index in (0..needed.len()).rev() {
        let removed = needed.remove(index);
        if !is_enough(&needed) {
            needed.insert(index, removed);
        }
    }
    let mut rest: Vec<&[u8]> =
        issuers.iter().filter(|issuer| needed.contains(issuer)).map(AsRef::as_ref).collect();
    while let Some(last) = chain.last()
        && let Some(next) = rest.iter().position(|issuer| has_issued(issuer, last))
    {
        chain.push(rest.remove(next));
    }
    chain
}

/// Returns whether the subject of one certificate is the issuer that another names.
fn has_issued(issuer: &[u8], issued: &[u8]) -> bool {
    let parse = |der| X509Certificate::from_der(der).map(|(_, parsed)| parsed);
    match (parse(issuer), parse(issued)) {
        (Ok(issuer), Ok(issued)) => issuer.subject().as_raw() == issued.issuer().as_raw(),
        _ => false,
    }
}

/// Lists of revoked certificates (CRL).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RevocationLists {
    lists: Vec<CertificateRevocationListDer<'static>>,
    /// Issuer and end of validity of the list that ends first; `None` if none ends.
    first_end: Option<(String, Duration)>,
}

impl RevocationLists {
    /// Parses the lists of a PEM file.
    ///
    /// # Errors
    /// If the file has no list, or one that is malformed. The times of validity are not checked:
    /// see [`RevocationLists::check_time`].
    pub fn from_pem(pem: &[u8]) -> Result<Self, CertificateError> {
        let lists = pem::revocation_lists(pem).map_err(CertificateError::Chain)?;
        let mut first_end = None::<(String, Duration)>;
        for list in &lists {
            let (issuer, end) = issuer_and_end(list).map_err(CertificateError::Chain)?;
            if let Some(end) = end
                && first_end.as_ref().is_none_or(|(_, first)| end < *first)
            {
                first_end = Some((issuer, end));
            }
        }
        Ok(Self { lists, first_end })
    }

    /// Checks that no list has expired. An expired one refuses every certificate of its issuer.
    ///
    /// # Errors
    /// If one has expired.
    pub fn check_time(&self, time_of_day: Duration) -> Result<(), CertificateError> {
        match &self.first_end {
            Some((issuer, end)) if *end <= time_of_day => {
                let days = days_text(time_of_day - *end);
                Err(CertificateError::Chain(format!(
                    "has a revocation list of \"{issuer}\" that expired {days} ago"
                )))
            }
            _ => Ok(()),
        }
    }
}

/// Returns the issuer of a list, and when it ends, as a duration since 1970.
fn issuer_and_end(der: &[u8]) -> Result<(String, Option<Duration>), String> {
    let (_, list) = CertificateRevocationList::from_der(der)
        .map_err(|error| format!("has a malformed revocation list: {error}"))?;
    let since_1970 = |seconds: i64| Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
    let end = list.next_update().map(|end| since_1970(end.timestamp()));
    Ok((list.issuer().to_string(), end))
}

#[cfg(test)]
mod tests {
    use rcgen::{
        CertificateParams, CertificateRevocationListParams, KeyIdMethod, RevocationReason,
        RevokedCertParams, SerialNumber, date_time_ymd,
    };

    use rustls::sign::CertifiedKey;

    use super::*;
    use crate::test_support::{Authority, Failure, clock, handshake, provider};
    use crate::{
        Certificate, ClientSettings, ServerOptions, ServerSettings, TicketKeys, TlsErrorKind,
        UnknownName, Versions,
    };

    fn requested(
        authority: &Authority,
        mode: ClientCertificateMode,
        names: &[&str],
        revoked: Vec<RevocationLists>,
    ) -> ClientCertificates {
        let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
        ClientCertificates::new(mode, authority.roots(), revoked, &names, &provider()).unwrap()
    }

    /// Creates the settings of a service that has a certificate for each group of names.
    fn server(
        authority: &Authority,
        groups: &[&[&str]],
        versions: Versions,
        client_certificates: Option<ClientCertificates>,
    ) -> ServerSettings {
        let options = ServerOptions {
            certificates: groups.iter().map(|names| authority.issue(names)).collect(),
            versions,
            client_certificates,
            ..ServerOptions::default()
        };
        let settings = ServerSettings::new(options, &provider(), &clock()).unwrap();
        let mut keys = TicketKeys::default();
        keys.rotate(&provider()).unwrap();
        settings.set_ticket_keys(&keys, "web");
        settings
    }

    /// Issues a certificate with the serial number 1.
    fn issue_first(authority: &Authority) -> Certificate {
        let mut params = CertificateParams::new(["client".to_owned()]).unwrap();
        params.serial_number = Some(SerialNumber::from(1));
        let (chain, key) = authority.issue_pem(params);
        Certificate::from_pem(chain.as_bytes(), key.as_bytes(), &provider()).unwrap()
    }

    /// Returns a list that revokes the serial number, and ends with the year.
    fn list_pem(authority: &Authority, serial: u64, year: i32) -> String {
        let revoked = RevokedCertParams {
            serial_number: SerialNumber::from(serial),
            revocation_time: date_time_ymd(2020, 1, 1),
            reason_code: Some(RevocationReason::KeyCompromise),
            invalidity_date: None,
        };
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(2020, 1, 1),
            next_update: date_time_ymd(year, 12, 31),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: vec![revoked],
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&authority.0).unwrap().pem().unwrap()
    }

    fn lists(authority: &Authority, serial: u64, year: i32) -> Vec<RevocationLists> {
        vec![RevocationLists::from_pem(list_pem(authority, serial, year).as_bytes()).unwrap()]
    }

    use ClientCertificateMode::{Optional, Required};

    const BOTH: [Versions; 2] = [Versions::Only12, Versions::Only13];

    /// Returns the kind of the error with which the server ends a handshake.
    fn server_kind(result: Result<impl Sized, Failure>) -> TlsErrorKind {
        match result {
            Err(Failure::AtServer(error)) => error.kind,
            Err(Failure::AtClient(error)) => panic!("the client failed: {error}"),
            Ok(_) => panic!("the handshake succeeded"),
        }
    }

    #[test]
    fn a_client_presents_a_valid_certificate_or_fails() {
        for versions in BOTH {
            let (site, authority) = (Authority::new("site"), Authority::new("clients"));
            let [required, optional] = [Required, Optional].map(|mode| {
                let requested = requested(&authority, mode, &[], Vec::new());
                server(&site, &[&["a.example"]], versions, Some(requested))
            });
            let (chain, key) = authority.issue_pem(CertificateParams::new([]).unwrap());
            let certificate =
                Certificate::from_pem(chain.as_bytes(), key.as_bytes(), &provider()).unwrap();
            let expected = certificate.key.cert[0].to_vec();
            let client = site.client(Some(certificate), &clock());
            for server in [&required, &optional] {
                for _ in 0..2 {
                    let (_, session) = handshake(&client, "a.example", server).unwrap();
                    assert_eq!(session.peer_certificates().collect::<Vec<_>>(), [&expected[..]]);
                    assert!(!session.handshake().unwrap().is_resumed, "there are no tickets");
                }
            }
            let client = site.client(None, &clock());
            let (_, session) = handshake(&client, "a.example", &optional).unwrap();
            assert_eq!(session.peer_certificates().count(), 0);
            assert_eq!(session.client_certificates(), Some(Optional));
            assert_eq!(session.client_chain(NOW).len(), 0);
            let kind = server_kind(handshake(&client, "a.example", &required));
            assert_eq!(kind, TlsErrorKind::CertificateMissing);
            // The issuer of this certificate is no root.
            let client = site.client(Some(site.issue(&["client"])), &clock());
            for server in [&required, &optional] {
                let kind = server_kind(handshake(&client, "a.example", server));
                assert_eq!(kind, TlsErrorKind::UnknownIssuer);
            }
        }
    }

    /// The time of day of the tests' clock.
    const NOW: Duration = Duration::from_secs(1_800_000_000);

    /// Returns a client with a certificate of `issuer`, which sends `others` after it.
    fn client_with(site: &Authority, issuer: &Authority, others: &[&Authority]) -> ClientSettings {
        let mut certificate = issuer.issue(&["client"]);
        let mut key = CertifiedKey::clone(&certificate.key);
        key.cert.extend(others.iter().map(|other| other.0.der().clone()));
        certificate.key = Arc::new(key);
        site.client(Some(certificate), &clock())
    }

    #[test]
    fn only_the_verified_path_of_a_client_is_returned() {
        for versions in BOTH {
            let (site, root, stranger) =
                (Authority::new("site"), Authority::new("root"), Authority::new("stranger"));
            let upper = root.intermediate("upper");
            let lower = upper.intermediate("lower");
            let requested = requested(&root, Required, &[], Vec::new());
            let server = server(&site, &[&["a.example"]], versions, Some(requested));
            let chain = |client: ClientSettings| {
                let (_, session) = handshake(&client, "a.example", &server).unwrap();
                let own = session.peer_certificates().next().unwrap();
                let chain = session.client_chain(NOW);
                assert_eq!(chain[0], own);
                chain[1..].iter().map(|issuer| issuer.to_vec()).collect::<Vec<_>>()
            };
            let path = [lower.0.der().to_vec(), upper.0.der().to_vec()];
            assert_eq!(chain(client_with(&site, &lower, &[&lower, &upper])), path);
            assert_eq!(chain(client_with(&site, &lower, &[&lower, &upper, &root])), path);
            assert_eq!(chain(client_with(&site, &lower, &[&stranger, &upper, &lower])), path);
            assert_eq!(chain(client_with(&site, &lower, &[&lower, &lower, &upper])), path);
            assert_eq!(chain(client_with(&site, &root, &[&lower, &root])), [[0; 0]; 0]);
        }
    }

    #[test]
    fn a_long_chain_is_refused() {
        for versions in BOTH {
            let (site, root) = (Authority::new("site"), Authority::new("root"));
            let requested = requested(&root, Optional, &[], Vec::new());
            let server = server(&site, &[&["a.example"]], versions, Some(requested));
            let attempt = |others: &[&Authority]| {
                handshake(&client_with(&site, &root, others), "a.example", &server)
            };
            assert!(attempt(&[&root; CHAIN_LENGTH_MAX - 1]).is_ok());
            let kind = server_kind(attempt(&[&root; CHAIN_LENGTH_MAX]));
            assert_eq!(kind, TlsErrorKind::Certificate);
            let mut params = CertificateParams::new([]).unwrap();
            let name = "n".repeat(CHAIN_BYTES_MAX);
            params.distinguished_name.push(rcgen::DnType::CommonName, name);
            let (chain, key) = root.issue_pem(params);
            let long = Certificate::from_pem(chain.as_bytes(), key.as_bytes(), &provider());
            let client = site.client(Some(long.unwrap()), &clock());
            let kind = server_kind(handshake(&client, "a.example", &server));
            assert_eq!(kind, TlsErrorKind::Certificate);
        }
    }

    #[test]
    fn a_revoked_certificate_is_refused() {
        for versions in BOTH {
            let (site, authority) = (Authority::new("site"), Authority::new("clients"));
            let client = site.client(Some(issue_first(&authority)), &clock());
            let attempt = |lists: Vec<RevocationLists>| {
                let requested = requested(&authority, Required, &[], lists);
                let server = server(&site, &[&["a.example"]], versions, Some(requested));
                handshake(&client, "a.example", &server).map(|_| ())
            };
            assert_eq!(attempt(lists(&authority, 2, 2090)), Ok(()));
            let kind = |lists| server_kind(attempt(lists));
            assert_eq!(kind(lists(&authority, 1, 2090)), TlsErrorKind::CertificateRevoked);
            let expired = lists(&authority, 2, 2021);
            assert_eq!(kind(expired), TlsErrorKind::RevocationUnknown);
            let of_other = lists(&Authority::new("other"), 2, 2090);
            assert_eq!(kind(of_other), TlsErrorKind::RevocationUnknown);
        }
    }

    #[test]
    fn a_bad_revocation_list_is_one_clear_error() {
        let authority = Authority::new("clients");
        let expired = lists(&authority, 1, 2021).remove(0);
        let day = |days: u64| Duration::from_secs(days * 86_400);
        let end = Duration::from_secs(date_time_ymd(2021, 12, 31).unix_timestamp() as u64);
        expired.check_time(end - day(1)).unwrap();
        let error = expired.check_time(end + day(3)).unwrap_err().to_string();
        assert_eq!(error, "has a revocation list of \"CN=clients\" that expired 3 days ago");
        let problem = |pem: &[u8]| RevocationLists::from_pem(pem).unwrap_err().to_string();
        assert_eq!(problem(b"text"), "is not PEM: it has no revocation list");
        assert_eq!(problem(authority.0.pem().as_bytes()), "contains no revocation list");
        let malformed = "-----BEGIN X509 CRL-----\nMAA=\n-----END X509 CRL-----\n";
        let problem = problem(malformed.as_bytes());
        assert!(problem.starts_with("has a malformed revocation list: "), "{problem}");
    }

    #[test]
    fn a_request_belongs_on_a_connection_with_the_same_settings() {
        let (site, authority) = (Authority::new("site"), Authority::new("clients"));
        let requested = requested(&authority, Required, &["b.example", "*.in.example"], Vec::new());
        let groups: [&[&str]; 3] =
            [&["a.example", "b.example"], &["c.example"], &["*.in.example", "in.example"]];
        let server = server(&site, &groups, Versions::From12, Some(requested));
        let settings = |name| {
            let settings = server.name_settings(name);
            (settings.certificate, settings.client_certificates)
        };
        assert_eq!(settings(None), (Some(0), None));
        assert_eq!(settings(Some("unknown.example")), (Some(0), None));
        assert_eq!(settings(Some("A.example.")), (Some(0), None));
        assert_eq!(settings(Some("b.example")), (Some(0), Some(Required)));
        assert_eq!(settings(Some("in.example")), (Some(2), None));
        assert_eq!(settings(Some("x.in.example")), (Some(2), Some(Required)));
        assert_eq!(settings(Some("y.x.in.example")), (Some(0), Some(Required)));

        let (_, session) = handshake(&site.client(None, &clock()), "a.example", &server).unwrap();
        assert!(!server.serves_every_host(&session));
        let is_misdirected = |name, host| server.is_misdirected(&session, name, Some(host));
        let name = Some("a.example");
        assert!(!is_misdirected(name, "a.example") && !is_misdirected(name, "unknown.example"));
        assert!(is_misdirected(name, "b.example"), "it requests client certificates");
        assert!(is_misdirected(name, "c.example"), "it has another certificate");
        assert!(is_misdirected(None, "b.example"), "even if the client named no server");
        assert!(!is_misdirected(None, "c.example"));
        assert!(!server.is_misdirected(&session, name, None), "a request without a host");
        let client = site.client(Some(authority.issue(&["client"])), &clock());
        let (_, session) = handshake(&client, "b.example", &server).unwrap();
        assert!(server.is_misdirected(&session, Some("b.example"), None));
        assert!(server.is_misdirected(&session, Some("b.example"), Some("a.example")));
        assert!(!server.is_misdirected(&session, Some("b.example"), Some("B.example.")));
    }

    #[test]
    fn a_service_with_one_certificate_serves_every_host() {
        let site = Authority::new("site");
        let mut options =
            ServerOptions { certificates: vec![site.issue(&["a.example"])], ..Default::default() };
        let server = ServerSettings::new(options.clone(), &provider(), &clock()).unwrap();
        options.unknown_name = UnknownName::Refuse;
        let refusing = ServerSettings::new(options, &provider(), &clock()).unwrap();
        let (_, session) = handshake(&site.client(None, &clock()), "a.example", &server).unwrap();
        assert!(server.serves_every_host(&session) && !refusing.serves_every_host(&session));
        let name = Some("a.example");
        assert!(!server.is_misdirected(&session, name, Some("b.example")));
        assert!(refusing.is_misdirected(&session, name, Some("b.example")));
        assert!(!refusing.is_misdirected(&session, name, Some("A.example")));
    }
}
