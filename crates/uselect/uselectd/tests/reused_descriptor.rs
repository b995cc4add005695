//! A descriptor that is still in one watcher, and that was closed, reused and added to another
//! watcher.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod common;
#[path = "common/listener.rs"]
mod listener;

use std::io::Write;
use std::net::{SocketAddrV4, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Duration;

use common::tracker;
use listener::listener;
use uselect::{DescriptorEvent, TrackedSocket, Watcher, bits};

const LONG: Option<Duration> = Some(Duration::from_secs(5));
const EDGES: u32 = bits::IN | bits::EDGE;

#[test]
fn a_watcher_does_not_report_a_reused_descriptor_of_another() {
    let Some(tracker) = tracker() else { return };
    for hands_over in [false, true] {
        let (listener, address) = listener(tracker);
        let [first, second] = [(); 2].map(|()| Watcher::new(tracker).unwrap());
        let connections = [(); 3].map(|()| connected(&listener, address));
        // At most one of the two pairs of neighbours crosses the end of a word of the bitmaps.
        let [(_peer, socket), (mut neighbour_peer, neighbour), _rest] = match &connections {
            [(_, a), (_, b), _] if a.as_raw_fd() / 64 == b.as_raw_fd() / 64 => connections,
            _ => {
                let [first, second, third] = connections;
                [second, third, first]
            }
        };
        let reused = socket.as_raw_fd();
        assert_eq!(reused / 64, neighbour.as_raw_fd() / 64, "both are in the same word");
        first.add(reused, EDGES, 1).unwrap();
        first.add(neighbour.as_raw_fd(), EDGES, 2).unwrap();
        // The clients connect before the close, so that none of them gets the descriptor. There are
        // several, because the daemon, a thread of this process, may get the descriptor first.
        let mut clients = [(); 8].map(|()| TcpStream::connect(address).unwrap()).into_iter();
        // Close the socket without removing it from the watcher.
        drop(socket);
        let mut others = Vec::new();
        let (mut client, socket) = loop {
            let (client, socket) = (clients.next().unwrap(), accepted(&listener));
            if socket.as_raw_fd() == reused {
                break (client, socket);
            }
            others.push((client, socket));
        };
        second.add(reused, EDGES, 3).unwrap();
        let mut events = [DescriptorEvent::default(); 4];
        assert_eq!(second.wait(&mut events, Some(Duration::ZERO), None), Ok(0));
        if hands_over {
            first.hand_over();
        }
        client.write_all(b"x").unwrap();
        neighbour_peer.write_all(b"x").unwrap();
        for socket in [&socket, &neighbour] {
            while socket.state().unwrap().events & bits::IN == 0 {
                std::thread::yield_now();
            }
        }
        assert_eq!(first.wait(&mut events, LONG, None), Ok(1));
        assert_eq!(events[0].data, 2);
        assert_eq!(second.wait(&mut events, LONG, None), Ok(1));
        assert_eq!(events[0].data, 3);
    }
}

fn connected(listener: &TrackedSocket, address: SocketAddrV4) -> (TcpStream, TrackedSocket) {
    (TcpStream::connect(address).unwrap(), accepted(listener))
}

fn accepted(listener: &TrackedSocket) -> TrackedSocket {
    loop {
        match listener.accept(false) {
            Ok((socket, _)) => return socket,
            Err(_) => std::thread::yield_now(),
        }
    }
}
