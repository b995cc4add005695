//! Lookup of users and groups in the texts of passwd(5) and group(5).

use crate::privileges::Identity;

/// Returns the identity of a user, given its name or number, from the text of passwd(5).
pub fn find_user(passwd: &str, name: &str) -> Option<Identity> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (found, user, group) = (fields.next()?, fields.nth(1)?, fields.next()?);
        (found == name || user == name)
            .then(|| Some(Identity { user: user.parse().ok()?, group: group.parse().ok()? }))?
    })
}

/// Returns the number of a group from the text of group(5).
pub fn find_group(groups: &str, name: &str) -> Option<u32> {
    groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == name).then(|| fields.nth(1)?.parse().ok())?
    })
}

/// Returns the name of the user with this number from the text of passwd(5).
pub fn find_user_name(passwd: &str, user: u32) -> Option<String> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, number) = (fields.next()?, fields.nth(1)?);
        (number.parse() == Ok(user)).then(|| name.to_owned())
    })
}
