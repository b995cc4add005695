//! PEM files, with errors that name the format of files that are no PEM.
//!
//! A message completes a sentence that names the file.

use rustls::pki_types::pem::{Error, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};

/// Returns the certificates of a file, at least one.
pub(crate) fn certificates(file: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    items(file, "certificate")
}

/// Returns the revocation lists of a file, at least one.
pub(crate) fn revocation_lists(
    file: &[u8],
) -> Result<Vec<CertificateRevocationListDer<'static>>, String> {
    items(file, "revocation list")
}

/// Returns the first private key of a file.
pub(crate) fn private_key(file: &[u8]) -> Result<PrivateKeyDer<'static>, String> {
    if contains(file, b"BEGIN ENCRYPTED PRIVATE KEY") || contains(file, b"Proc-Type: 4,ENCRYPTED") {
        return Err("is encrypted; decrypt it with: openssl pkey -in FILE -out FILE.plain".into());
    }
    match PrivateKeyDer::from_pem_slice(file) {
        Ok(key) => Ok(key),
        Err(Error::NoItemsFound) => Err(no_items(file, "private key")),
        Err(error) => Err(malformed(&error)),
    }
}

fn items<T: PemObject>(file: &[u8], item: &str) -> Result<Vec<T>, String> {
    let items: Result<Vec<T>, Error> = T::pem_slice_iter(file).collect();
    match items {
        Ok(items) if items.is_empty() => Err(no_items(file, item)),
        items => items.map_err(|error| malformed(&error)),
    }
}

fn malformed(error: &Error) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    match error {
        Error::MissingSectionEnd { end_marker } => {
            format!("is not complete PEM: -----END {}----- is missing", text(end_marker))
        }
        Error::IllegalSectionStart { line } => {
            format!("is not PEM: the line \"{}\" begins no section", text(line))
        }
        Error::Base64Decode(_) => "is not PEM: it has invalid Base64".into(),
        error => format!("is not PEM: {error}"),
    }
}

/// Returns the problem of a file in which no `item` was found, with the command that converts it.
fn no_items(file: &[u8], item: &str) -> String {
    const SEQUENCE: u8 = 0x30;
    if contains(file, b"-----BEGIN PKCS7-----") {
        return "is PKCS#7; convert it with: openssl pkcs7 -print_certs -in FILE -out FILE.pem"
            .into();
    }
    if contains(file, b"-----BEGIN ") {
        return format!("contains no {item}");
    }
    if file.first() != Some(&SEQUENCE) {
        return format!("is not PEM: it has no {item}");
    }
    // The content of PKCS#12 begins with the version 3, that of a certificate with a sequence.
    if contains(&file[..file.len().min(12)], &[0x02, 0x01, 0x03]) {
        return "is PKCS#12; convert it with: openssl pkcs12 -in FILE -nodes -out FILE.pem".into();
    }
    let command = match item {
        "certificate" => "x509",
        "private key" => "pkey",
        _ => "crl",
    };
    format!("is DER; convert it with: openssl {command} -inform DER -in FILE -out FILE.pem")
}

fn contains(bytes: &[u8], text: &[u8]) -> bool {
    bytes.windows(text.len()).any(|window| window == text)
}
