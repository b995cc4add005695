//! Values by the names of servers.

use std::collections::HashMap;

use crate::hello::normal_name;

/// Values by DNS names and wildcards of the form `*.NAME`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct NameMap<V>(HashMap<String, V>);

impl<V> Default for NameMap<V> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<V: Default> NameMap<V> {
    /// Returns the value of exactly this name or wildcard, which is inserted if it is missing.
    pub(crate) fn entry(&mut self, pattern: &str) -> &mut V {
        self.0.entry(normal_name(pattern)).or_default()
    }

    /// Returns the value for a name in lower case: an exact match before a wildcard. A wildcard
    /// matches one label.
    pub(crate) fn find(&self, name: &str) -> Option<&V> {
        let wildcard = || {
            let (_, parent) = name.split_once('.')?;
            self.0.get(&format!("*.{parent}"))
        };
        self.0.get(name).or_else(wildcard)
    }

    /// Returns whether the name, in lower case, is in the map, or is at any depth below the NAME of
    /// a wildcard.
    pub(crate) fn covers(&self, name: &str) -> bool {
        let is_below = |(at, _): (usize, &str)| self.0.contains_key(&format!("*{}", &name[at..]));
        self.0.contains_key(name) || name.match_indices('.').any(is_below)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
