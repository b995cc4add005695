//! The emulated network carries what real programs send.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

#[allow(dead_code, reason = "this test uses a part")]
mod network;
mod program;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use network::{CLIENT, Network, SERVER};

/// Bytes that differ at each place.
fn pattern(length: usize) -> Vec<u8> {
    let word = |number: u32| number.wrapping_mul(2_654_435_761).to_le_bytes();
    (0..length as u32).flat_map(word).take(length).collect()
}

/// Sends bytes through a TCP connection, which returns them.
fn echo(network: &Network, length: usize) {
    let (bound, port) = channel();
    thread::scope(|scope| {
        network.server(scope, move || {
            let listener = TcpListener::bind((SERVER, 0)).unwrap();
            bound.send(listener.local_addr().unwrap().port()).unwrap();
            let (mut stream, client) = listener.accept().unwrap();
            assert_eq!(client.ip().to_string(), CLIENT);
            let mut received = Vec::new();
            stream.read_to_end(&mut received).unwrap();
            stream.write_all(&received).unwrap();
        });
        network.client(scope, move || {
            let mut stream = TcpStream::connect((SERVER, port.recv().unwrap())).unwrap();
            let (sent, mut received) = (pattern(length), Vec::new());
            stream.write_all(&sent).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            stream.read_to_end(&mut received).unwrap();
            assert!(received == sent);
        });
    });
}

#[test]
fn connections_pass_delays_and_losses() {
    let paths = ["delay=1ms", "delay=1ms,jitter=2ms,loss=2%,reorder=5%,rate=50mbit"];
    for path in paths {
        let Some(network) = Network::start(&["--path", path], "") else { return };
        echo(&network, 1_000_000);
        assert!(network.end().contains(" 0 not taken; "));
    }
}

/// A datagram with one byte is counted.
const COUNTED: &[u8] = b"c";

/// Returns datagrams to their senders, except those that are counted. Ends when one without bytes
/// comes. Returns their number.
fn count(socket: &UdpSocket) -> usize {
    let (mut counted, mut bytes) = (0, [0; 10]);
    loop {
        let (length, client) = socket.recv_from(&mut bytes).unwrap();
        match length {
            0 => return counted,
            1 => counted += 1,
            _ => _ = socket.send_to(&bytes[..length], client).unwrap(),
        }
    }
}

/// Sends a datagram until it comes back. All that was sent before has arrived then, or is lost.
fn send_and_wait(socket: &UdpSocket, datagram: &[u8]) {
    let mut bytes = [0; 10];
    loop {
        socket.send(datagram).unwrap();
        while let Ok(length) = socket.recv(&mut bytes) {
            if &bytes[..length] == datagram {
                return;
            }
        }
    }
}

#[test]
fn packets_are_lost_as_often_as_configured() {
    const ROUNDS: u32 = 200;
    const PACKETS_PER_ROUND: usize = 100;
    let Some(network) =
        Network::start(&["--path", "loss=50%", "--up", "loss=5%", "--down", "loss=0%"], "")
    else {
        return;
    };
    let (bound, port) = channel();
    let counted = thread::scope(|scope| {
        let server = network.server(scope, move || {
            let socket = UdpSocket::bind((SERVER, 0)).unwrap();
            bound.send(socket.local_addr().unwrap().port()).unwrap();
            count(&socket)
        });
        network.client(scope, move || {
            let socket = UdpSocket::bind((CLIENT, 0)).unwrap();
            socket.connect((SERVER, port.recv().unwrap())).unwrap();
            socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
            for round in 0..ROUNDS {
                for _ in 0..PACKETS_PER_ROUND {
                    socket.send(COUNTED).unwrap();
                }
                send_and_wait(&socket, &round.to_le_bytes());
            }
            // The end may be lost, too. When it was not, the port is closed.
            while socket.send(b"").is_ok() {
                thread::sleep(Duration::from_millis(10));
            }
        });
        server.join().unwrap()
    });
    let sent = ROUNDS as usize * PACKETS_PER_ROUND;
    let lost = sent - counted;
    assert!((sent / 25..sent * 3 / 50).contains(&lost), "{lost} of {sent}");
    assert!(network.end().contains(" lost, 0 without room; "));
}

#[test]
fn links_have_their_settings() {
    let settings = ",mtu=1280,mss=1000,gso=off,congestion=reno";
    let Some(network) = Network::start(&["--down", "delay=1ms", "--seed", "7"], settings) else {
        return;
    };
    echo(&network, 300_000);
    let shown = thread::scope(|scope| {
        let show = |arguments: &[&str]| {
            let output = Command::new("ip").args(arguments).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        let show_all = move || [show(&["-d", "link", "show", "wan0"]), show(&["route", "show"])];
        network.client(scope, show_all).join().unwrap().concat()
    });
    for setting in [" mtu 1280 ", " gso_max_segs 1 ", " advmss 1000 ", " congctl reno "] {
        assert!(shown.contains(setting), "{setting}: {shown}");
    }
}

#[test]
fn wrong_options_are_named() {
    for (options, message) in [
        (&["--clients", "1,10.9.0.1/24"][..], "--servers is needed"),
        (&["--path", "speed=1"], "\"speed=1\" is no setting of a path (expected: delay=TIME,"),
        (&["--clients", "a,b"], "\"b\" is no setting of a link (expected: NETNS,"),
        (&["--rate", "1"], "\"--rate\" is no option (expected: --clients,"),
        (&["--seed"], "--seed needs a value"),
    ] {
        let (status, _, error) = program::run("wan", options);
        assert_eq!(status, Some(2), "{options:?}");
        assert!(error.starts_with(&format!("millrace-lab: wan: {message}")), "{error}");
    }
}
