//! What `millrace doctor` finds.

/// A finding: what there is, and a word about it.
pub(crate) struct Finding {
    pub(crate) name: &'static str,
    pub(crate) value: String,
    pub(crate) detail: String,
    pub(crate) severity: Severity,
}

/// What a finding means for millrace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Severity {
    /// As it should be.
    Ok,
    /// It works, with a limitation that the operator should know.
    Note,
    /// millrace cannot run.
    Fatal,
}

impl Finding {
    pub(crate) fn new(
        name: &'static str,
        verdict: Severity,
        value: impl Into<String>,
        detail: impl Into<String>,
    ) -> Self {
        Self { name, value: value.into(), detail: detail.into(), severity: verdict }
    }

    /// One that is as it should be, unless there is a `note`.
    pub(crate) fn ok_or_note(name: &'static str, value: String, note: Option<&str>) -> Self {
        let verdict = if note.is_some() { Severity::Note } else { Severity::Ok };
        Self::new(name, verdict, value, note.unwrap_or_default())
    }
}
