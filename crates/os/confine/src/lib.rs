//! How a process gives up what it does not need: its user and its capabilities, then every file
//! (Landlock) and system call (seccomp) that it was not made for.
//!
//! Each function is one idiom of the kernel and decides nothing: what is given up is decided by the
//! caller, and what an error means as well.

mod landlock;
mod privileges;
mod seccomp;
mod users;

pub use landlock::{Grant, landlock_version, restrict_files};
pub use privileges::{
    Identity, NET_BIND_SERVICE, Permission, access, capabilities, create_directory_for,
    drop_privileges, has_cap_ipc_lock, prepare_name_lookup, set_dumpable, set_no_new_privs,
};
pub use seccomp::{ExtraCalls, can_restrict_syscalls, restrict_syscalls};
pub use users::{find_group, find_user, find_user_name};
