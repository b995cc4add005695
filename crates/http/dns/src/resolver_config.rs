//! The local configuration of name resolution: the hosts file and the resolver's configuration.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use super::name::DomainName;

/// The contents of `/etc/hosts` and `/etc/resolv.conf`, parsed once and shared by all workers.
#[derive(Clone, Debug)]
pub struct ResolverConfig {
    /// Addresses by name without a final dot, in the order of the file.
    hosts: BTreeMap<Box<[u8]>, Arc<[IpAddr]>>,
    /// Name servers in the order in which they are queried; at least one.
    pub(super) servers: Vec<SocketAddr>,
    /// The search list: domains that are appended to short names.
    search: Vec<DomainName>,
    /// A name with fewer dots than this is first tried with the search list (`ndots`).
    ndots: usize,
    /// Maximum time for an answer of one server.
    pub(super) timeout: Duration,
    /// How often each server is queried; at least 1.
    pub(super) attempts: usize,
}

impl ResolverConfig {
    /// Maximum number of name servers of resolv.conf, as in the C library. Others are ignored.
    const SERVERS_MAX: usize = 3;
    /// Maximum number of domains of a search list. Others are ignored.
    const SEARCH_MAX: usize = 32;

    /// Parses the contents of a hosts(5) and a resolv.conf(5) file; either may be empty. If
    /// `servers` is not empty, it replaces the name servers of `resolv`.
    ///
    /// As in the C library, invalid lines are ignored, and without any name server, the one on this
    /// machine is queried. The options `ndots`, `timeout` and `attempts` apply. Addresses whose
    /// zone is the name of an interface are ignored.
    pub fn parse(hosts: &[u8], resolv: &[u8], servers: &[SocketAddr]) -> Self {
        let mut sources = Self {
            hosts: parse_hosts(hosts),
            servers: Vec::new(),
            search: Vec::new(),
            ndots: 1,
            timeout: Duration::from_secs(5),
            attempts: 2,
        };
        for line in resolv.split(|&byte| byte == b'\n') {
            sources.read_resolv_line(line);
        }
        if !servers.is_empty() {
            sources.servers = servers.to_vec();
        } else if sources.servers.is_empty() {
            sources.servers.push(SocketAddr::from((Ipv4Addr::LOCALHOST, 53)));
        }
        sources
    }

    fn read_resolv_line(&mut self, line: &[u8]) {
        if matches!(line.first(), Some(b'#' | b';')) {
            return;
        }
        let mut words = words(line);
        match words.next() {
            Some(b"nameserver") if self.servers.len() < Self::SERVERS_MAX => {
                self.servers.extend(words.next().and_then(parse_server));
            }
            // The last of these lines applies.
            Some(b"search" | b"domain") => {
                self.search = words.filter_map(DomainName::parse).take(Self::SEARCH_MAX).collect();
            }
            Some(b"options") => {
                for option in words {
                    self.read_option(option);
                }
            }
            _ => {}
        }
    }

    fn read_option(&mut self, option: &[u8]) {
        let Ok(option) = std::str::from_utf8(option) else { return };
        let Some((name, value)) = option.split_once(':') else { return };
        let Ok(value) = value.parse::<u32>() else { return };
        // The limits are those of resolv.conf(5).
        match name {
            "ndots" => self.ndots = value.min(15) as usize,
            "timeout" => self.timeout = Duration::from_secs(u64::from(value.clamp(1, 30))),
            "attempts" => self.attempts = value.clamp(1, 5) as usize,
            _ => {}
        }
    }

    /// Returns the addresses that are configured on this machine: for `localhost` and its
    /// subdomains always loopback addresses (RFC 6761 section 6.3), otherwise those of the hosts
    /// file.
    pub(super) fn local_addresses(&self, name: &DomainName) -> Option<Arc<[IpAddr]>> {
        let hosts = self.hosts.get(name.without_final_dot());
        if !name.is_within(b"localhost") {
            return hosts.cloned();
        }
        match hosts.filter(|addresses| addresses.iter().all(IpAddr::is_loopback)) {
            Some(addresses) => Some(addresses.clone()),
            None => Some([Ipv6Addr::LOCALHOST.into(), Ipv4Addr::LOCALHOST.into()].into()),
        }
    }

    /// Returns the names to query, in order, until one has an address. The name itself comes first
    /// if it has at least `ndots` dots, otherwise last. An absolute name is the only candidate.
    pub(super) fn candidates(&self, name: &DomainName) -> Vec<DomainName> {
        if name.is_absolute() {
            return vec![name.clone()];
        }
        let mut names: Vec<DomainName> =
            self.search.iter().filter_map(|domain| name.append_domain(domain)).collect();
        let first = if name.dot_count() >= self.ndots { 0 } else { names.len() };
        names.insert(first, name.clone());
        names
    }
}

fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty())
}

fn parse_server(word: &[u8]) -> Option<SocketAddr> {
    let text = std::str::from_utf8(word).ok()?;
    match text.parse::<IpAddr>() {
        Ok(address) => Some(SocketAddr::new(address, 53)),
        // A zone given by its number, such as `fe80::1%2`.
        Err(_) => format!("[{text}]:53").parse().ok(),
    }
}

fn parse_hosts(text: &[u8]) -> BTreeMap<Box<[u8]>, Arc<[IpAddr]>> {
    let mut hosts: BTreeMap<Box<[u8]>, Vec<IpAddr>> = BTreeMap::new();
    for line in text.split(|&byte| byte == b'\n') {
        let content = line.split(|&byte| byte == b'#').next().unwrap_or_default();
        let mut words = words(content);
        let address = words.next().and_then(|word| std::str::from_utf8(word).ok()?.parse().ok());
        let Some(address) = address else { continue };
        for name in words.filter_map(DomainName::parse) {
            let addresses = hosts.entry(name.without_final_dot().into()).or_default();
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
    }
    hosts.into_iter().map(|(name, addresses)| (name, addresses.into())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> DomainName {
        DomainName::parse(text.as_bytes()).unwrap()
    }

    fn known(sources: &ResolverConfig, text: &str) -> Option<Vec<String>> {
        let addresses = sources.local_addresses(&name(text))?;
        Some(addresses.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn common_hosts_files_are_parsed() {
        let hosts = b"127.0.0.1\tlocalhost\n# 10.0.0.1 commented\n::1 localhost ip6-localhost\n\
            10.0.0.2  Build.Example build # the farm\n10.0.0.3 build\n10.0.0.2 build\n\
            not-an-address name\n10.0.0.4\nfe80::1%eth0 zoned\n\xff\xfe odd\n2001:db8::5 five";
        let sources = ResolverConfig::parse(hosts, b"", &[]);
        let addresses = |list: &[&str]| Some(list.iter().map(ToString::to_string).collect());
        assert_eq!(known(&sources, "localhost"), addresses(&["127.0.0.1", "::1"]));
        assert_eq!(known(&sources, "BUILD"), addresses(&["10.0.0.2", "10.0.0.3"]));
        assert_eq!(known(&sources, "build.example."), addresses(&["10.0.0.2"]));
        assert_eq!(known(&sources, "five"), addresses(&["2001:db8::5"]));
        for unknown in ["commented", "name", "zoned", "odd", "example"] {
            assert_eq!(known(&sources, unknown), None, "{unknown}");
        }
    }

    #[test]
    fn localhost_is_loopback_whatever_the_hosts_file_says() {
        for hosts in ["", "192.0.2.1 localhost a.localhost"] {
            let sources = ResolverConfig::parse(hosts.as_bytes(), b"", &[]);
            for text in ["localhost", "LocalHost.", "a.localhost", "a.b.localhost."] {
                let both = Some(vec!["::1".to_owned(), "127.0.0.1".to_owned()]);
                assert_eq!(known(&sources, text), both, "{text}");
            }
            assert_eq!(known(&sources, "localhost.example"), None);
        }
    }

    #[test]
    fn common_resolv_conf_files_are_parsed() {
        let resolv = b"; a comment\n# another\nnameserver 192.0.2.1\nnameserver\t2001:db8::1\n\
            nameserver nonsense\nnameserver fe80::1%2\nnameserver 192.0.2.9\n\
            domain old.example\nsearch corp.example. lab.example\n\
            options rotate timeout:2 attempts:99 ndots:2 edns0 ndots:x\n";
        let sources = ResolverConfig::parse(b"", resolv, &[]);
        let servers: Vec<String> = sources.servers.iter().map(ToString::to_string).collect();
        assert_eq!(servers, ["192.0.2.1:53", "[2001:db8::1]:53", "[fe80::1%2]:53"]);
        assert_eq!(sources.search, [name("corp.example."), name("lab.example")]);
        assert_eq!((sources.ndots, sources.attempts), (2, 5));
        assert_eq!(sources.timeout, Duration::from_secs(2));

        let local = ["127.0.0.1:53".parse().unwrap()];
        assert_eq!(ResolverConfig::parse(b"", b"", &[]).servers, local);
        let given = ["127.0.0.1:5300".parse().unwrap()];
        assert_eq!(ResolverConfig::parse(b"", resolv, &given).servers, given);
    }

    #[test]
    fn short_names_use_the_search_list_first() {
        let sources =
            ResolverConfig::parse(b"", b"search a.example b.example\noptions ndots:2", &[]);
        for (text, candidates) in [
            ("x", &["x.a.example", "x.b.example", "x"][..]),
            ("x.y", &["x.y.a.example", "x.y.b.example", "x.y"]),
            ("x.y.z", &["x.y.z", "x.y.z.a.example", "x.y.z.b.example"]),
            ("x.", &["x."]),
        ] {
            let candidates: Vec<DomainName> = candidates.iter().map(|text| name(text)).collect();
            assert_eq!(sources.candidates(&name(text)), candidates, "{text}");
        }
        let long = ["a".repeat(49).as_str(); 5].join(".");
        assert_eq!(sources.candidates(&name(&long)), [name(&long)], "too long below a domain");
    }
}
