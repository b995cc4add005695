//! The reports of the rules.

use std::fmt;

/// One place that breaks a rule. Ordered by place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Defect {
    /// The path from the root of the tree.
    pub(crate) path: String,
    /// The number of the line, from 1.
    pub(crate) line: usize,
    pub(crate) wrong: String,
    pub(crate) expected: String,
    /// Details that help to mend the defect, one line each. Printed only with `--edges`.
    pub(crate) details: Vec<String>,
}

impl Defect {
    pub(crate) fn new(
        path: &str,
        line: usize,
        wrong: impl Into<String>,
        expected: impl Into<String>,
    ) -> Defect {
        Defect {
            path: path.to_owned(),
            line,
            wrong: wrong.into(),
            expected: expected.into(),
            details: Vec::new(),
        }
    }
}

impl fmt::Display for Defect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Defect { path, line, wrong, expected, .. } = self;
        write!(f, "{path}:{line}: {wrong} (expected: {expected})")
    }
}
