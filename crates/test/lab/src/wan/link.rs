//! The device at one side of the network, in a network namespace that exists.

use std::fs::File;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::Command;
use std::thread;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tun_rs::{DeviceBuilder, SyncDevice};

use crate::wan::settings::set;

/// The name of the device at each side.
pub const DEVICE: &str = "wan0";

/// The settings of one side.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LinkSettings {
    /// The file of the namespace.
    namespace: PathBuf,
    address: IpAddr,
    /// The bits of the address that are those of the network.
    prefix: u8,
    mtu: u32,
    /// The bytes of a segment that this side lets the other one send; `None`: as long as the MTU
    /// allows.
    mss: Option<u32>,
    /// Packets have up to 64 KB, as between a network card and its driver.
    has_gso: bool,
    /// The congestion control of connections to the other side; `None`: that of the namespace.
    congestion: Option<String>,
}

/// The allowed settings, for errors and help.
pub const ALLOWED: &str = "NETNS,ADDRESS/BITS, then mtu=BYTES, mss=BYTES, gso=on or off, \
                           congestion=NAME; NETNS is a name of ip-netns(8) or a process id";

/// The packets that wait for the emulator; beyond them the kernel drops.
const QUEUE_PACKETS: &str = "10000";

impl LinkSettings {
    /// Reads settings such as "clients,10.9.0.1/24,mtu=1500,gso=off".
    ///
    /// # Errors
    /// One line that names the wrong part and what is allowed.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = |part: &str| format!("{part:?} is no setting of a link (expected: {ALLOWED})");
        let mut parts = text.split(',');
        let namespace = parts.next().filter(|name| !name.is_empty()).ok_or_else(|| wrong(text))?;
        let network = parts.next().ok_or_else(|| wrong(text))?;
        let (address, prefix) = parse_network(network).ok_or_else(|| wrong(network))?;
        let is_process = namespace.bytes().all(|byte| byte.is_ascii_digit());
        let namespace = if is_process {
            format!("/proc/{namespace}/ns/net")
        } else {
            format!("/run/netns/{namespace}")
        };
        let (namespace, mtu, has_gso) = (namespace.into(), 1500, true);
        let mut link =
            Self { namespace, address, prefix, mtu, mss: None, has_gso, congestion: None };
        for part in parts {
            let number = |value: &str| value.parse().ok().filter(|of| (536..=65_535).contains(of));
            let applied = match part.split_once('=') {
                Some(("mtu", value)) => set(&mut link.mtu, number(value)),
                Some(("mss", value)) => set(&mut link.mss, number(value).map(Some)),
                Some(("gso", value)) => set(&mut link.has_gso, on_or_off(value)),
                Some(("congestion", name)) => {
                    set(&mut link.congestion, Some(Some(name.to_owned())))
                }
                _ => None,
            };
            applied.ok_or_else(|| wrong(part))?;
        }
        Ok(link)
    }

    /// Creates the device, and a route to the network of the other side.
    ///
    /// # Errors
    /// One line with the reason.
    pub fn open(&self, other: &Self) -> Result<SyncDevice, String> {
        let in_namespace = || {
            let shown = self.namespace.display();
            let file = File::open(&self.namespace).map_err(|error| format!("{shown}: {error}"))?;
            let kind = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(file.as_fd(), kind)
                .map_err(|error| format!("{shown}: {error}"))?;
            // Programs that this thread starts are in the namespace, too.
            let builder = DeviceBuilder::new().name(DEVICE).packet_information(false);
            let device = builder.offload(true).build_sync();
            let device = device.map_err(|error| format!("{DEVICE} in {shown}: {error}"))?;
            device.set_nonblocking(true).map_err(|error| error.to_string())?;
            self.configure(other)?;
            Ok(device)
        };
        // The namespace of a thread stays the one that it has moved to.
        thread::scope(|scope| {
            scope.spawn(in_namespace).join().expect("the thread has not panicked")
        })
    }

    fn configure(&self, other: &Self) -> Result<(), String> {
        let mtu = self.mtu.to_string();
        let mut set = vec!["link", "set", "dev", DEVICE, "mtu", &mtu];
        set.extend(["txqueuelen", QUEUE_PACKETS]);
        if !self.has_gso {
            set.extend(["gso_max_segs", "1"]);
        }
        set.push("up");
        run_ip(&set)?;
        let address = format!("{}/{}", self.address, self.prefix);
        run_ip(&["address", "add", &address, "dev", DEVICE])?;
        let (network, mss) = (other.network(), self.mss.map(|mss| mss.to_string()));
        let mut route = vec!["route", "replace", &network, "dev", DEVICE];
        if let Some(mss) = &mss {
            route.extend(["advmss", mss]);
        }
        if let Some(name) = &self.congestion {
            route.extend(["congctl", name]);
        }
        run_ip(&route)
    }

    /// Returns the network of the address, as ip-route(8) reads it.
    fn network(&self) -> String {
        let host_bits = |bits: u8| bits - self.prefix;
        let address: IpAddr = match self.address {
            IpAddr::V4(address) => {
                let mask = u32::MAX.checked_shl(host_bits(32).into()).unwrap_or(0);
                (address & std::net::Ipv4Addr::from(mask)).into()
            }
            IpAddr::V6(address) => {
                let mask = u128::MAX.checked_shl(host_bits(128).into()).unwrap_or(0);
                (address & std::net::Ipv6Addr::from(mask)).into()
            }
        };
        format!("{address}/{}", self.prefix)
    }
}

fn on_or_off(text: &str) -> Option<bool> {
    match text {
        "on" => Some(true),
        "off" => Some(false),
        _ => None,
    }
}

fn parse_network(text: &str) -> Option<(IpAddr, u8)> {
    let (address, prefix) = text.split_once('/')?;
    let (address, prefix): (IpAddr, u8) = (address.parse().ok()?, prefix.parse().ok()?);
    (prefix <= if address.is_ipv4() { 32 } else { 128 }).then_some((address, prefix))
}

/// Runs ip(8) in the namespace of this thread.
fn run_ip(arguments: &[&str]) -> Result<(), String> {
    let done = Command::new("ip").args(arguments).output();
    let done = done.map_err(|error| format!("ip (package iproute2): {error}"))?;
    if done.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&done.stderr);
    Err(format!("ip {}: {}", arguments.join(" "), message.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_name_a_namespace_and_a_network() {
        let link =
            LinkSettings::parse("clients,10.9.1.7/20,mtu=4352,mss=1400,gso=off,congestion=cubic");
        let expected = LinkSettings {
            namespace: "/run/netns/clients".into(),
            address: "10.9.1.7".parse().unwrap(),
            prefix: 20,
            mtu: 4352,
            mss: Some(1400),
            has_gso: false,
            congestion: Some("cubic".to_owned()),
        };
        assert_eq!(link, Ok(expected));
        let link = |text| LinkSettings::parse(text).unwrap();
        assert_eq!(link("17,10.9.31.7/20").network(), "10.9.16.0/20");
        assert_eq!(link("17,fd00:1::7/64").network(), "fd00:1::/64");
        assert_eq!(link("17,10.9.1.7/0").network(), "0.0.0.0/0");
        assert_eq!(link("17,10.9.1.7/32").namespace, PathBuf::from("/proc/17/ns/net"));
    }

    #[test]
    fn an_error_names_the_wrong_part() {
        for (text, part) in [
            ("", ""),
            ("clients", "clients"),
            ("clients,10.9.1.7", "10.9.1.7"),
            ("clients,10.9.1.7/33", "10.9.1.7/33"),
            ("clients,10.9.1.7/24,mtu=9", "mtu=9"),
            ("clients,10.9.1.7/24,gso=maybe", "gso=maybe"),
            ("clients,10.9.1.7/24,rate=1", "rate=1"),
        ] {
            let error = LinkSettings::parse(text).unwrap_err();
            assert_eq!(error, format!("{part:?} is no setting of a link (expected: {ALLOWED})"));
        }
    }
}
