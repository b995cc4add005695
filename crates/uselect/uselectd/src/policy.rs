//! `AccessPolicy`: which processes may be registered, and how many of one user.

use std::path::{Path, PathBuf};

use crate::limits::{REGIONS_MAX, REGIONS_PER_USER};

/// Which processes may be registered: those that any of the lists matches. If all lists are empty,
/// only processes of root.
#[derive(Clone, Debug)]
pub struct AccessPolicy {
    /// Effective user ids, in the daemon's user namespace.
    pub users: Vec<u32>,
    /// Group ids; a process matches by its effective group or by a supplementary one.
    pub groups: Vec<u32>,
    /// Paths of cgroups (version 2) as in /proc/PID/cgroup; a process matches in the cgroup or in a
    /// descendant.
    pub cgroups: Vec<PathBuf>,
    /// Registrations of one user at the same time, 1 to [`REGIONS_MAX`].
    pub per_user: usize,
}

impl Default for AccessPolicy {
    fn default() -> Self {
        let per_user = REGIONS_PER_USER;
        Self { users: Vec::new(), groups: Vec::new(), cgroups: Vec::new(), per_user }
    }
}

impl AccessPolicy {
    /// Returns whether the policy allows a process by its user or groups.
    pub(crate) fn allows_user(&self, uid: u32, groups: &[u32]) -> bool {
        if self.users.is_empty() && self.groups.is_empty() && self.cgroups.is_empty() {
            return uid == 0;
        }
        self.users.contains(&uid) || self.groups.iter().any(|group| groups.contains(group))
    }

    /// Returns whether the policy allows a process by its cgroup.
    pub(crate) fn allows_cgroup(&self, cgroup: &Path) -> bool {
        self.cgroups.iter().any(|ancestor| cgroup.starts_with(ancestor))
    }
}

const _: () =
    assert!(REGIONS_PER_USER <= REGIONS_MAX, "the limit of a user is at most the limit of all");

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(policy: &AccessPolicy, uid: u32, groups: &[u32], cgroup: &str) -> bool {
        policy.allows_user(uid, groups) || policy.allows_cgroup(Path::new(cgroup))
    }

    #[test]
    fn only_root_is_allowed_without_lists() {
        let no_lists = AccessPolicy::default();
        assert!(allows(&no_lists, 0, &[], "/"));
        assert!(!allows(&no_lists, 1, &[0], "/"));
        let lists = AccessPolicy {
            users: vec![7],
            groups: vec![8, 9],
            cgroups: vec!["/web/a".into()],
            ..AccessPolicy::default()
        };
        assert!(!allows(&lists, 0, &[0], "/"));
        assert!(allows(&lists, 7, &[], "/"));
        assert!(allows(&lists, 1, &[1, 9], "/"));
        assert!(allows(&lists, 1, &[], "/web/a"));
        assert!(allows(&lists, 1, &[], "/web/a/b"));
        assert!(!allows(&lists, 1, &[], "/web"));
        assert!(!allows(&lists, 1, &[], "/web/ab"));
        assert!(!allows(&lists, 1, &[], "/../web/a"));
    }
}
