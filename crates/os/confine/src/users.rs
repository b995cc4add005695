//! Users and groups by their names, in the texts of passwd(5) and group(5).

use crate::privileges::Identity;

/// The line of passwd(5) for a user's name or number.
pub fn find_user(passwd: &str, name: &str) -> Option<Identity> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (found, user, group) = (fields.next()?, fields.nth(1)?, fields.next()?);
        (found == name || user == name)
            .then(|| Some(Identity { user: user.parse().ok()?, group: group.parse().ok()? }))?
    })
}

/// The number of a group in the text of group(5).
pub fn find_group(groups: &str, name: &str) -> Option<u32> {
    groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == name).then(|| fields.nth(1)?.parse().ok())?
    })
}

/// The name in the text of passwd(5) of the user with this number.
pub fn find_user_name(passwd: &str, user: u32) -> Option<String> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, number) = (fields.next()?, fields.nth(1)?);
        (number.parse() == Ok(user)).then(|| name.to_owned())
    })
}
