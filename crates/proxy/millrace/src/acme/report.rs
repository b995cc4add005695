//! The content of a state folder, for `doctor` and `check`.

use std::fs;
use std::path::Path;
use std::time::Duration;

use millrace_config::{Acme, Config};
use millrace_tls::{Aead, Certificate, Provider};

use super::control::settings;
use super::state::FileNames;
use crate::finding::{Finding, Severity};

/// The time before expiry from which on a certificate should have been renewed.
const RENEWED_BEFORE: Duration = Duration::from_secs(86_400);

/// Returns a finding for each certificate, and for each order that failed last, in a state folder.
pub(crate) fn findings(folder: &Path) -> Vec<Finding> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    names.sort();
    let text = |name: &str| fs::read_to_string(folder.join(name)).ok();
    let mut findings = Vec::new();
    for name in &names {
        if let Some(stem) = name.strip_suffix(".pem") {
            let failure = text(&format!("{stem}.failure")).unwrap_or_default();
            findings.extend(text(name).and_then(|pem| certificate(&pem, failure)));
        } else if let Some(stem) = name.strip_suffix(".failure")
            && !names.contains(&format!("{stem}.pem"))
        {
            let detail = text(name).unwrap_or_default();
            findings.push(Finding::new("certificate", Severity::Note, "MISSING", detail));
        }
    }
    findings
}

fn certificate(pem: &str, failure: String) -> Option<Finding> {
    let provider = Provider::new(Aead::fastest());
    let certificate = Certificate::from_pem(pem.as_bytes(), pem.as_bytes(), &provider).ok()?;
    let left = certificate.not_after().saturating_sub(millrace_sys::time_of_day());
    let is_good = left > RENEWED_BEFORE && failure.is_empty();
    let severity = if is_good { Severity::Ok } else { Severity::Note };
    let names = certificate.names().join(", ");
    let value = format!("{names}: expires in {} days", left.as_secs() / 86_400);
    Some(Finding::new("certificate", severity, value, failure))
}

/// Returns the last failure of each certificate of a configuration whose last order failed.
pub(crate) fn failures(config: &Config) -> Vec<String> {
    let failure = |acme: &Acme| {
        let folder = &acme.content.as_ref()?.folder;
        let text = fs::read_to_string(folder.join(FileNames::of(acme).failure)).ok()?;
        Some(format!("acme: {text}"))
    };
    settings(config).filter_map(failure).collect()
}
