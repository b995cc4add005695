//! A proxy that forwards everything, which the checks must detect.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;

/// Accepts connections on a loopback port of its own until the process ends, and forwards their
/// bytes to the origin and back. Returns the port's address.
pub(super) fn start(origin: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a loopback port");
    let address = listener.local_addr().expect("a bound socket has an address");
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(origin) = TcpStream::connect(origin) else { continue };
            let (Ok(client_too), Ok(origin_too)) = (client.try_clone(), origin.try_clone()) else {
                continue;
            };
            thread::spawn(move || pass(client, origin));
            thread::spawn(move || pass(origin_too, client_too));
        }
    });
    address
}

fn pass(mut from: TcpStream, mut to: TcpStream) {
    // Otherwise a second small segment would wait for the acknowledgement of the first one.
    let _ = to.set_nodelay(true);
    let mut bytes = [0; 16 * 1024];
    while let Ok(length) = from.read(&mut bytes) {
        if length == 0 || to.write_all(&bytes[..length]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
    let _ = from.shutdown(Shutdown::Read);
}
