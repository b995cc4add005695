//! Moves packets between the two devices.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt::{Display, Formatter};
use std::io::{ErrorKind, Result};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tun_rs::{SyncDevice, VIRTIO_NET_HDR_LEN};

use crate::wan::emulator::{Emulator, Fate, Side};

/// The devices, and the packets under way.
pub struct Carrier {
    clients: SyncDevice,
    servers: SyncDevice,
    emulator: Emulator,
    begun: Instant,
    departures: BinaryHeap<Reverse<Departure>>,
    /// Packets that were sent, for their memory.
    spare: Vec<Vec<u8>>,
    counts: Counts,
}

/// The packets of a run, by their fate, and its cost.
#[derive(Clone, Copy, Default, Debug)]
pub struct Counts {
    /// Sent to the other side.
    pub carried: u64,
    /// Lost by chance.
    pub lost: u64,
    /// Without room in the queue of their connection.
    pub refused: u64,
    /// The kernel did not take them at the other side.
    pub undelivered: u64,
    /// Sent more than [`LATE`] after their time.
    pub late: u64,
    /// The CPU time of the thread that has moved them.
    pub cpu: Duration,
}

/// A packet, with its virtio_net_hdr, that departs at a time. Those of the same time depart in the
/// order of their numbers.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Departure {
    at: Duration,
    number: u64,
    from_clients: bool,
    packet: Vec<u8>,
}

/// The lateness that is counted: the emulator had no processor.
pub const LATE: Duration = Duration::from_millis(1);
/// The packets of one device that are received before others are sent.
const BATCH: usize = 64;
/// The longest packet of the kernel, with its header.
const PACKET_BYTES_MAX: usize = 65_536 + VIRTIO_NET_HDR_LEN;
/// The packets whose memory is kept.
const SPARE_MAX: usize = 4096;

impl Carrier {
    /// Begins with nothing under way.
    pub fn new(clients: SyncDevice, servers: SyncDevice, emulator: Emulator) -> Self {
        let begun = Instant::now();
        let (departures, spare, counts) = (BinaryHeap::new(), Vec::new(), Counts::default());
        Self { clients, servers, emulator, begun, departures, spare, counts }
    }

    /// Moves packets until `end` is readable or closed.
    ///
    /// # Errors
    /// Those of poll(2) and of reading a device.
    pub fn run(&mut self, end: BorrowedFd<'_>) -> Result<Counts> {
        let mut packet = vec![0; PACKET_BYTES_MAX];
        let cpu_before = millrace_sys::thread_cpu_time();
        while !self.wait(end)? {
            self.receive(Side::Clients, &mut packet)?;
            self.receive(Side::Servers, &mut packet)?;
            self.send_due();
        }
        let cpu = millrace_sys::thread_cpu_time() - cpu_before;
        Ok(Counts { cpu, ..self.counts })
    }

    /// Waits for a packet or the next departure. Returns whether the end has come.
    fn wait(&self, end: BorrowedFd<'_>) -> Result<bool> {
        let next = self.departures.peek().map(|Reverse(departure)| departure.at);
        let left = next.map(|at| at.saturating_sub(self.begun.elapsed()));
        let left = left.map(|left| Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: i64::from(left.subsec_nanos()),
        });
        let readable = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let mut files =
            [readable(self.clients.as_fd()), readable(self.servers.as_fd()), readable(end)];
        match poll(&mut files, left.as_ref()) {
            Ok(_) => Ok(!files[2].revents().is_empty()),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes the packets that a side has sent.
    fn receive(&mut self, from: Side, packet: &mut [u8]) -> Result<()> {
        let device = if from == Side::Clients { &self.clients } else { &self.servers };
        for _ in 0..BATCH {
            let length = match device.recv(packet) {
                Ok(length) => length,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            };
            let packet = &packet[..length];
            let payload = packet.get(VIRTIO_NET_HDR_LEN..).ok_or(ErrorKind::InvalidData)?;
            match self.emulator.arrive(from, payload, self.begun.elapsed()) {
                Fate::Lost => self.counts.lost += 1,
                Fate::Refused => self.counts.refused += 1,
                Fate::Departs(at) => {
                    let mut kept = self.spare.pop().unwrap_or_default();
                    kept.clear();
                    kept.extend_from_slice(packet);
                    let number = self.counts.carried + self.departures.len() as u64;
                    let from_clients = from == Side::Clients;
                    let departure = Departure { at, number, from_clients, packet: kept };
                    self.departures.push(Reverse(departure));
                }
            }
        }
        Ok(())
    }

    /// Sends the packets whose time has come.
    fn send_due(&mut self) {
        loop {
            let now = self.begun.elapsed();
            if self.departures.peek().is_none_or(|Reverse(next)| next.at > now) {
                return;
            }
            let Reverse(due) = self.departures.pop().expect("it was found just now");
            let to = if due.from_clients { &self.servers } else { &self.clients };
            self.counts.late += u64::from(now - due.at > LATE);
            self.counts.carried += 1;
            // As a network does, it loses packets that the other side cannot take.
            self.counts.undelivered += u64::from(to.send(&due.packet).is_err());
            if self.spare.len() < SPARE_MAX {
                self.spare.push(due.packet);
            }
        }
    }
}

impl Display for Counts {
    fn fmt(&self, to: &mut Formatter<'_>) -> std::fmt::Result {
        let Self { carried, lost, refused, undelivered, late, cpu } = self;
        write!(
            to,
            "{carried} packets carried, {late} of them over 1 ms late, {undelivered} not taken; \
             {lost} lost, {refused} without room; {:.3} s of CPU time",
            cpu.as_secs_f64()
        )
    }
}
