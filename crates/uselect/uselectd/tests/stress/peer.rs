//! The peers: random operations on the other ends of the connections, which are not tracked.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;
use rustix::net::{SendFlags, send};

use crate::{RandomChoices, SharedState};

const STREAMS_MAX: usize = 150;
const CONNECT_MAX: Duration = Duration::from_millis(20);

pub(crate) fn play(mut random: RandomChoices, shared: &SharedState, listener: &TcpListener) {
    let (mut streams, mut buffer) = (Vec::<TcpStream>::new(), vec![2; 300 << 10]);
    while shared.wait_for_next_step() {
        let count = random.bytes();
        let at = random.below(streams.len().max(1));
        match random.below(40) {
            0 if streams.len() < STREAMS_MAX => {
                // With a short timeout: during a pause no thread accepts, and the accept queue
                // may be full.
                let address = shared.address.into();
                if let Ok(stream) = TcpStream::connect_timeout(&address, CONNECT_MAX) {
                    stream.set_nonblocking(true).unwrap();
                    streams.push(stream);
                }
            }
            1 if streams.len() < STREAMS_MAX => {
                if let Ok((stream, _)) = listener.accept() {
                    stream.set_nonblocking(true).unwrap();
                    streams.push(stream);
                }
            }
            _ if streams.is_empty() => {}
            2 if random.below(4) == 0 => {
                let stream = streams.swap_remove(at);
                if random.below(2) == 0 {
                    set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
                }
            }
            3 if random.below(20) == 0 => {
                let _ = streams[at].shutdown([Shutdown::Write, Shutdown::Both][random.below(2)]);
            }
            4..=22 => drop(streams[at].read(&mut buffer[..count])),
            23.. => drop(streams[at].write(&buffer[..count])),
            3 => drop(send(&streams[at], &buffer[..1], SendFlags::OOB | SendFlags::NOSIGNAL)),
            _ => {}
        }
    }
}
