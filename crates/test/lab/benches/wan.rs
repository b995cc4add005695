//! The emulated network beside its settings: `cargo bench -p millrace-lab --bench wan`.
#![allow(clippy::unwrap_used, reason = "a failure ends the benchmark")]

#[path = "../tests/network/mod.rs"]
#[allow(dead_code, reason = "this benchmark uses a part")]
mod network;

use std::net::UdpSocket;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use network::{CLIENT, Network, SERVER};

/// A packet that a server has received.
struct Arrival {
    /// The socket that has sent it, and the one that has received it.
    connection: (u16, u16),
    after: Duration,
    at: Duration,
}

/// The load of the client: from each of `sources` sockets to each of `targets` sockets `count`
/// packets of `bytes`, with `pause` after each round of all connections.
#[derive(Clone, Copy)]
struct Load {
    sources: u16,
    targets: u16,
    count: u32,
    bytes: usize,
    pause: Duration,
}

/// The time without a packet after which no more is expected.
const SILENCE: Duration = Duration::from_secs(2);

/// Sends all packets through a network with this path, and returns those that arrived.
fn measure(path: &str, load: Load) -> (Vec<Arrival>, String) {
    let network = Network::start(&["--path", path], "").expect("root");
    let begun = Instant::now();
    let (bound, ports) = channel();
    let arrivals = thread::scope(|scope| {
        let server = network.server(scope, move || {
            let sockets: Vec<UdpSocket> =
                (0..load.targets).map(|_| UdpSocket::bind((SERVER, 0)).unwrap()).collect();
            for socket in &sockets {
                socket.set_nonblocking(true).unwrap();
            }
            let ports = sockets.iter().map(|of| of.local_addr().unwrap().port());
            bound.send(ports.collect::<Vec<u16>>()).unwrap();
            receive(&sockets, begun)
        });
        network.client(scope, move || {
            let ports = ports.recv().unwrap();
            let sockets: Vec<UdpSocket> =
                (0..load.sources).map(|_| UdpSocket::bind((CLIENT, 0)).unwrap()).collect();
            let mut packet = vec![0; load.bytes];
            for _ in 0..load.count {
                for socket in &sockets {
                    for port in &ports {
                        let now = begun.elapsed().as_nanos() as u64;
                        packet[..8].copy_from_slice(&now.to_le_bytes());
                        socket.send_to(&packet, (SERVER, *port)).unwrap();
                    }
                }
                thread::sleep(load.pause);
            }
        });
        server.join().unwrap()
    });
    (arrivals, network.end())
}

fn receive(sockets: &[UdpSocket], begun: Instant) -> Vec<Arrival> {
    let (mut arrivals, mut bytes) = (Vec::new(), [0; 2000]);
    let mut last = Instant::now();
    while arrivals.is_empty() || last.elapsed() < SILENCE {
        for (number, socket) in sockets.iter().enumerate() {
            while let Ok((_, client)) = socket.recv_from(&mut bytes) {
                let at = begun.elapsed();
                let sent = u64::from_le_bytes(bytes[..8].try_into().unwrap());
                let after = at - Duration::from_nanos(sent);
                arrivals.push(Arrival { connection: (client.port(), number as u16), after, at });
                last = Instant::now();
            }
        }
        thread::sleep(Duration::from_micros(50));
    }
    arrivals
}

fn main() {
    let one = Load {
        sources: 1,
        targets: 1,
        count: 100_000,
        bytes: 200,
        pause: Duration::from_micros(150),
    };
    let (arrivals, line) = measure("delay=50ms,loss=1%", one);
    let mut errors: Vec<f64> =
        arrivals.iter().map(|of| (of.after.as_secs_f64() - 0.05).abs() * 1e3).collect();
    errors.sort_by(f64::total_cmp);
    let at = |part: f64| errors[((errors.len() - 1) as f64 * part) as usize];
    println!(
        "delay of 50 ms, error in ms: median {:.3}, p99 {:.3}, most {:.3}",
        at(0.5),
        at(0.99),
        at(1.0)
    );
    println!("loss of 1 %: {:.3} %", (100_000 - arrivals.len()) as f64 / 1e3);
    print!("{line}");

    let many =
        Load { sources: 100, targets: 50, count: 20, bytes: 972, pause: Duration::from_millis(20) };
    let (arrivals, line) = measure("delay=50ms,rate=56kbit", many);
    let mut connections = std::collections::HashMap::<_, Vec<Duration>>::new();
    for arrival in &arrivals {
        connections.entry(arrival.connection).or_default().push(arrival.at);
    }
    let mut errors: Vec<f64> = connections
        .values()
        .map(|times| {
            let seconds = (times[times.len() - 1] - times[0]).as_secs_f64();
            // With the headers of UDP and IP, 1,000 bytes.
            ((times.len() - 1) as f64 * 8_000.0 / seconds / 56_000.0 - 1.0).abs() * 100.0
        })
        .collect();
    errors.sort_by(f64::total_cmp);
    println!(
        "rate of 56 kbit/s, {} connections, {} packets, error in %: median {:.3}, most {:.3}",
        errors.len(),
        arrivals.len(),
        errors[errors.len() / 2],
        errors[errors.len() - 1]
    );
    print!("{line}");
}
