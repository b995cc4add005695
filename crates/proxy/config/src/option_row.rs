//! How a row of the table of options is written.

use super::options::{Group, OptionRow, Scope};
use super::value_type::ValueType;

/// Returns a row that takes one value and has the same name on the command line and in files.
pub(super) const fn row(
    scope: Scope,
    group: Group,
    key: &'static str,
    value_type: ValueType,
    default: &'static str,
) -> OptionRow {
    OptionRow {
        flag: Some(key),
        key,
        scope,
        group,
        value_type,
        default,
        command_defaults: &[],
        values_max: 1,
        may_be_empty: true,
        summary: "",
        detail: "",
    }
}

/// Returns the rows of several lists, one after the other. `N` is their number.
pub(super) const fn joined<const N: usize>(lists: &[&[OptionRow]]) -> [OptionRow; N] {
    let mut all = [lists[0][0]; N];
    let mut count = 0;
    let mut list = 0;
    while list < lists.len() {
        let mut at = 0;
        while at < lists[list].len() {
            all[count] = lists[list][at];
            count += 1;
            at += 1;
        }
        list += 1;
    }
    assert!(count == N);
    all
}

impl OptionRow {
    /// Sets the summary.
    pub(super) const fn summary(self, summary: &'static str) -> Self {
        Self { summary, ..self }
    }

    /// Sets the sentences that follow the summary on reference pages.
    pub(super) const fn detail(self, detail: &'static str) -> Self {
        Self { detail, ..self }
    }

    /// Makes the option repeatable.
    pub(super) const fn repeatable(self, values_max: usize) -> Self {
        Self { values_max, ..self }
    }

    /// Refuses an empty list.
    pub(super) const fn not_empty(self) -> Self {
        Self { may_be_empty: false, ..self }
    }

    /// Sets a name for the command line that differs from the key.
    pub(super) const fn flag(self, flag: &'static str) -> Self {
        Self { flag: Some(flag), ..self }
    }

    /// Removes the option from the command line.
    pub(super) const fn only_in_files(self) -> Self {
        Self { flag: None, ..self }
    }

    /// Sets defaults that differ by command: names of commands with their values.
    pub(super) const fn command_defaults(
        self,
        command_defaults: &'static [(&'static str, &'static str)],
    ) -> Self {
        Self { command_defaults, ..self }
    }
}
