//! Listeners for tests.

use std::net::{Ipv4Addr, SocketAddrV4};

use uselect::{TrackedSocket, Tracker};

/// Creates a listener on a free port.
pub(crate) fn listener(tracker: &Tracker) -> (TrackedSocket, SocketAddrV4) {
    let listener = tracker.socket(false, false).unwrap();
    let any = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0);
    rustix::net::bind(&listener, &any).unwrap();
    rustix::net::listen(&listener, 64).unwrap();
    let address = rustix::net::getsockname(&listener).unwrap();
    (listener, SocketAddrV4::try_from(address).unwrap())
}
