//! Functions that restrict a process to what it needs. They drop its user and its capabilities, and
//! deny it the files (Landlock) and system calls (seccomp) that it does not need.
//!
//! Each function is one idiom of the kernel. The caller decides what is dropped, and how to handle
//! an error.

mod landlock;
mod privileges;
mod seccomp;
mod users;

pub use landlock::{Grant, landlock_version, restrict_execution, restrict_files};
pub use privileges::{
    Identity, NET_BIND_SERVICE, Permission, access, capabilities, create_directory_for,
    drop_privileges, drop_privileges_of_launcher, forbid_core_dumps, has_cap_ipc_lock,
    prepare_name_lookup, set_dumpable, set_no_new_privs,
};
pub use seccomp::{ExtraCalls, can_restrict_syscalls, restrict_syscalls};
pub use users::{find_group, find_user, find_user_name};
