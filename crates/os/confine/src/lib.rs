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
    Identity, LOW_PORTS, Permission, access, capabilities, give_up_privileges, has_ipc_lock,
    make_folder_of, prepare_name_lookup, refuse_new_privileges, set_dumpable,
};
pub use seccomp::{Also, can_restrict_calls, restrict_calls};
pub use users::{name_of, of_group, of_passwd};
