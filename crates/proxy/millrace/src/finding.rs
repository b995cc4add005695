//! What `millrace doctor` finds.

/// A finding: what there is, and a word about it.
pub(crate) struct Finding {
    pub(crate) name: &'static str,
    pub(crate) value: String,
    pub(crate) word: String,
    pub(crate) verdict: Verdict,
}

/// What a finding means for millrace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// As it should be.
    Good,
    /// It works, with a limitation that the operator should know.
    Note,
    /// millrace cannot run.
    Bad,
}

impl Finding {
    pub(crate) fn new(
        name: &'static str,
        verdict: Verdict,
        value: impl Into<String>,
        word: impl Into<String>,
    ) -> Self {
        Self { name, value: value.into(), word: word.into(), verdict }
    }

    /// One that is as it should be, unless there is a `note`.
    pub(crate) fn noted(name: &'static str, value: String, note: Option<&str>) -> Self {
        let verdict = if note.is_some() { Verdict::Note } else { Verdict::Good };
        Self::new(name, verdict, value, note.unwrap_or_default())
    }
}
