//! The findings of `millrace doctor`.

/// A finding: a value of this machine and a remark about it.
pub(crate) struct Finding {
    pub(crate) name: &'static str,
    pub(crate) value: String,
    pub(crate) detail: String,
    pub(crate) severity: Severity,
}

/// The severity of a finding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Severity {
    /// Nothing to do.
    Ok,
    /// millrace works with a limitation that the operator should know.
    Note,
    /// millrace cannot run.
    Fatal,
}

impl Finding {
    pub(crate) fn new(
        name: &'static str,
        severity: Severity,
        value: impl Into<String>,
        detail: impl Into<String>,
    ) -> Self {
        Self { name, value: value.into(), detail: detail.into(), severity }
    }

    /// Creates a finding with the severity `Note` if there is a `note`, otherwise `Ok`.
    pub(crate) fn ok_or_note(name: &'static str, value: String, note: Option<&str>) -> Self {
        let severity = if note.is_some() { Severity::Note } else { Severity::Ok };
        Self::new(name, severity, value, note.unwrap_or_default())
    }
}
