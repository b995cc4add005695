//! `Policy`: who may be registered, and how often.

use std::path::{Path, PathBuf};

use crate::limits::{REGIONS_MAX, REGIONS_PER_USER};

/// Who may be registered: whoever one of the lists has; root alone while all of them are empty.
#[derive(Clone, Debug)]
pub struct AccessPolicy {
    /// User ids, as the daemon's namespace has them.
    pub users: Vec<u32>,
    /// Group ids: of a process's own group, or of one of its others.
    pub groups: Vec<u32>,
    /// Cgroups of version 2, as /proc/PID/cgroup names them: a process is in one, or below it.
    pub cgroups: Vec<PathBuf>,
    /// Processes of one user at the same time, 1 to [`REGIONS_MAX`].
    pub per_user: usize,
}

impl Default for AccessPolicy {
    fn default() -> Self {
        let per_user = REGIONS_PER_USER;
        Self { users: Vec::new(), groups: Vec::new(), cgroups: Vec::new(), per_user }
    }
}

impl AccessPolicy {
    /// Whether it has a process, whatever its cgroup is.
    pub(crate) fn allows_user(&self, user: u32, groups: &[u32]) -> bool {
        if self.users.is_empty() && self.groups.is_empty() && self.cgroups.is_empty() {
            return user == 0;
        }
        self.users.contains(&user) || self.groups.iter().any(|group| groups.contains(group))
    }

    /// Whether it has a process, whosever that is.
    pub(crate) fn allows_cgroup(&self, cgroup: &Path) -> bool {
        self.cgroups.iter().any(|above| cgroup.starts_with(above))
    }
}

const _: () = assert!(REGIONS_PER_USER <= REGIONS_MAX, "more than there are is no bound");

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(policy: &AccessPolicy, user: u32, groups: &[u32], cgroup: &str) -> bool {
        policy.allows_user(user, groups) || policy.allows_cgroup(Path::new(cgroup))
    }

    #[test]
    fn root_alone_is_allowed_unless_a_list_says_who() {
        let nobody_said = AccessPolicy::default();
        assert!(allows(&nobody_said, 0, &[], "/"));
        assert!(!allows(&nobody_said, 1, &[0], "/"));
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
