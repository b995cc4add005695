//! Permissions that all users have.

use std::os::fd::BorrowedFd;

use rustix::io::Errno;

use crate::Result;

/// Returns whether the owner, the group and all others have the permission `bits` for an open file
/// or folder: 4 to read and list, 1 to search. With an access list (acl(5)), some users may have
/// fewer, so the result is `false`.
///
/// # Errors
/// Those of fstat(2) and fgetxattr(2).
pub fn permits_all_users(file: BorrowedFd<'_>, bits: u32) -> Result<bool> {
    let wanted = bits << 6 | bits << 3 | bits;
    if rustix::fs::fstat(file)?.st_mode & wanted != wanted {
        return Ok(false);
    }
    match rustix::fs::fgetxattr(file, "system.posix_acl_access", &mut [0_u8; 0]) {
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(true),
        Ok(_) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{File, Permissions};
    use std::os::fd::AsFd;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn all_three_groups_of_bits_count() {
        let path = std::env::temp_dir().join(format!("millrace-all-users-{}", std::process::id()));
        let file = File::create_new(&path).unwrap();
        let permits = |mode, bits| {
            file.set_permissions(Permissions::from_mode(mode)).unwrap();
            permits_all_users(file.as_fd(), bits).unwrap()
        };
        assert!(permits(0o444, 4) && permits(0o4755, 4) && permits(0o755, 5));
        assert!(!permits(0o404, 4) && !permits(0o440, 4) && !permits(0o044, 4));
        assert!(!permits(0o644, 5) && !permits(0, 4));
        // Version 2, and entries with tags, permissions and ids: the owner, a user without any
        // permission, the group, the mask and others.
        let entries = [(1, 6, !0), (2, 0, 54321), (4, 4, !0), (16, 4, !0), (32, 4, !0_u32)];
        let mut list = 2_u32.to_le_bytes().to_vec();
        for (tag, permissions, id) in entries {
            list.extend([tag, 0, permissions, 0]);
            list.extend(id.to_le_bytes());
        }
        let flags = rustix::fs::XattrFlags::empty();
        assert!(permits(0o644, 4));
        match rustix::fs::fsetxattr(&file, "system.posix_acl_access", &list, flags) {
            Ok(()) => assert_eq!(permits_all_users(file.as_fd(), 4), Ok(false)),
            Err(error) => println!("skip: the file system has no access lists: {error}"),
        }
        std::fs::remove_file(&path).unwrap();
    }
}
