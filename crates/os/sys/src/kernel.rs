//! The version of the kernel.

/// Returns whether the kernel is Linux `major`.`minor` or later (uname(2)).
pub fn kernel_is_since(major: u32, minor: u32) -> bool {
    let name = rustix::system::uname();
    is_since(name.release().to_str().unwrap_or_default(), (major, minor))
}

fn is_since(release: &str, version: (u32, u32)) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    let mut next = || numbers.next().and_then(Result::ok);
    (next(), next()) >= (Some(version.0), Some(version.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        assert!(kernel_is_since(5, 4) && !kernel_is_since(1000, 0));
        for release in ["6.13.0", "6.13-rc1", "6.100.3", "7.0"] {
            assert!(is_since(release, (6, 13)), "{release}");
        }
        for release in ["6.12.9", "6.2.100", "5.20", "6", ""] {
            assert!(!is_since(release, (6, 13)), "{release}");
        }
    }
}
