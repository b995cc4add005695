//! `Profile`: the figures of a measurement, and their table.

use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use crate::profile::calls;
use crate::profile::layout::{
    BASE, CALL_COUNTS, CALLS, CpuWords, DEVICE_INTERRUPTS, INTERRUPT, LOCAL_INTERRUPTS, RECEIVE,
    RECEIVED, SELECTED, SELECTED_RECEIVES, SENT, SINCE, SLOTS, SOCKET_WRITES, SOFTIRQ,
    SOFTIRQ_COUNTS, SWITCHES, TIMES,
};

/// A part of time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// A process in user mode, with the faults of its pages.
    User,
    /// The kernel in process context, except the parts below.
    Kernel,
    /// System calls that write to a socket, and sends of io_uring.
    SocketWrite,
    /// Softirqs that receive packets (NET_RX).
    Receive,
    /// Packets that the kernel receives in process context, as from a TUN device.
    DirectReceive,
    /// Softirqs that send packets (NET_TX).
    Send,
    /// All other softirqs.
    Softirq,
    /// Handlers of interrupts.
    Interrupt,
    /// No thread runs.
    Idle,
    /// Processes outside of the selection, in user and kernel mode.
    OtherProcesses,
    /// On this CPU nothing has happened in the measured time.
    Unknown,
}

impl Part {
    /// All parts, in the order of the table.
    pub const ALL: [Part; 11] = [
        Part::User,
        Part::Kernel,
        Part::SocketWrite,
        Part::Receive,
        Part::DirectReceive,
        Part::Send,
        Part::Softirq,
        Part::Interrupt,
        Part::Idle,
        Part::OtherProcesses,
        Part::Unknown,
    ];

    fn name(self) -> &'static str {
        match self {
            Part::User => "user",
            Part::Kernel => "kernel",
            Part::SocketWrite => "socket write",
            Part::Receive => "softirq, receive",
            Part::DirectReceive => "receive in process",
            Part::Send => "softirq, send",
            Part::Softirq => "softirq, other",
            Part::Interrupt => "interrupt",
            Part::Idle => "idle",
            Part::OtherProcesses => "other processes",
            Part::Unknown => "unknown",
        }
    }

    /// Returns the values of `enum part` in programs/profile.h.
    fn slots(self) -> &'static [usize] {
        match self {
            Part::Unknown => &[0],
            Part::User => &[1],
            Part::Kernel => &[2],
            Part::SocketWrite => &[3, 4],
            Part::Receive => &[5],
            Part::DirectReceive => &[6],
            Part::Send => &[7],
            Part::Softirq => &[8],
            Part::Interrupt => &[9],
            Part::Idle => &[10],
            Part::OtherProcesses => &[11],
        }
    }
}

/// The owner of time or of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// The selection.
    Selected,
    /// All else on the measured CPUs.
    Rest,
}

/// The names of softirqs, in the order of [`EventCounts::softirqs`].
pub const SOFTIRQS: [&str; 10] =
    ["HI", "TIMER", "NET_TX", "NET_RX", "BLOCK", "IRQ_POLL", "TASKLET", "SCHED", "HRTIMER", "RCU"];

/// Numbers of events on the measured CPUs.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct EventCounts {
    /// Softirqs of each kind, also those that have nothing to do with the selection.
    pub softirqs: [u64; 10],
    /// Softirqs that received at least one packet of the selected namespace.
    pub selected_receives: u64,
    /// Interrupts of devices.
    pub device_interrupts: u64,
    /// Interrupts of timers and from other CPUs.
    pub local_interrupts: u64,
    /// Packets that devices of the selection received: those of the selected namespace, or all on
    /// the selected core. A packet that GRO has merged counts as one.
    pub received: u64,
    /// Packets that other devices received.
    pub other_received: u64,
    /// Packets that devices of the selection sent. One that the device cuts (GSO) counts as one.
    pub sent: u64,
    /// Packets that other devices sent.
    pub other_sent: u64,
    /// Switches to a thread of the selection.
    pub switches: u64,
    /// Socket writes of the selection, with the sends of io_uring.
    pub socket_writes: u64,
    /// System calls of the selection that were made at least once: their names, most frequent
    /// first.
    pub calls: Vec<(String, u64)>,
}

/// The figures of a measurement.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Profile {
    /// From the begin to the end.
    pub duration: Duration,
    /// The number of measured CPUs.
    pub cpus: usize,
    /// Numbers of events.
    pub counts: EventCounts,
    /// Nanoseconds of each slot, on all measured CPUs.
    times: [u64; SLOTS],
}

impl Profile {
    /// Adds up the figures of the measured CPUs between two times, in nanoseconds.
    pub(crate) fn new(begin: u64, end: u64, cpus: &[CpuWords]) -> Self {
        let mut times = [0; SLOTS];
        for words in cpus {
            for (time, of_cpu) in times.iter_mut().zip(&words[TIMES..]) {
                *time += of_cpu;
            }
            let levels = [INTERRUPT, SOFTIRQ, RECEIVE, BASE].map(|level| words[level] as usize);
            let innermost = levels.into_iter().find(|slot| *slot != 0).unwrap_or_default();
            times[innermost % SLOTS] += end.saturating_sub(words[SINCE].max(begin));
        }
        let duration = Duration::from_nanos(end - begin);
        Self { duration, cpus: cpus.len(), counts: EventCounts::new(cpus), times }
    }

    /// Returns the time of a part that belongs to an owner.
    pub fn time(&self, owner: Owner, part: Part) -> Duration {
        let bit = if owner == Owner::Selected { SELECTED } else { 0 };
        Duration::from_nanos(part.slots().iter().map(|slot| self.times[slot | bit]).sum())
    }

    /// Returns the sum of all parts. It is the [`Profile::duration`] of each measured CPU.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.times.iter().sum())
    }
}

impl EventCounts {
    fn new(cpus: &[CpuWords]) -> Self {
        let sum = |word: usize| cpus.iter().map(|words| words[word]).sum();
        let numbers = (0..CALLS).map(|number| (number, sum(CALL_COUNTS + number)));
        let mut calls: Vec<(usize, u64)> = numbers.filter(|(_, count)| *count > 0).collect();
        calls.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        Self {
            softirqs: std::array::from_fn(|kind| sum(SOFTIRQ_COUNTS + kind)),
            selected_receives: sum(SELECTED_RECEIVES),
            device_interrupts: sum(DEVICE_INTERRUPTS),
            local_interrupts: sum(LOCAL_INTERRUPTS),
            received: sum(RECEIVED + 1),
            other_received: sum(RECEIVED),
            sent: sum(SENT + 1),
            other_sent: sum(SENT),
            switches: sum(SWITCHES),
            socket_writes: sum(SOCKET_WRITES),
            calls: calls.into_iter().map(|(number, of)| (calls::name(number), of)).collect(),
        }
    }
}

impl Display for Profile {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let measured = self.duration.as_secs_f64() * self.cpus as f64;
        let percent = |time: f64| if measured > 0.0 { time * 100.0 / measured } else { 0.0 };
        writeln!(out, "{:18} {:>12} {:>7} {:>12} {:>7}", "part", "selected s", "%", "rest s", "%")?;
        for part in Part::ALL {
            let times = [Owner::Selected, Owner::Rest].map(|of| self.time(of, part).as_secs_f64());
            if times == [0.0; 2] {
                continue;
            }
            let [selected, rest] = times;
            write!(out, "{:18} {selected:12.6} {:7.3}", part.name(), percent(selected))?;
            writeln!(out, " {rest:12.6} {:7.3}", percent(rest))?;
        }
        let sum = self.sum().as_secs_f64();
        let (cpus, duration) = (self.cpus, self.duration.as_secs_f64());
        writeln!(out, "sum {sum:.6} s; {duration:.6} s on each of {cpus} CPUs")?;
        write!(out, "{}", self.counts)
    }
}

impl Display for EventCounts {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let list = |counts: &mut dyn Iterator<Item = (&str, u64)>| {
            let shown = counts.filter(|(_, count)| *count > 0);
            shown.map(|(name, count)| format!(" {name} {count}")).collect::<Vec<_>>().join(",")
        };
        let calls = self.calls.iter().map(|(name, count)| (name.as_str(), *count));
        let total: u64 = calls.clone().map(|(_, count)| count).sum();
        writeln!(out, "system calls {total}:{}", list(&mut calls.clone()))?;
        writeln!(out, "socket writes {}, switches {}", self.socket_writes, self.switches)?;
        let (received, sent) = (self.received, self.sent);
        let (other_received, other_sent) = (self.other_received, self.other_sent);
        writeln!(out, "packets received {received}, sent {sent}")?;
        writeln!(out, "other packets received {other_received}, sent {other_sent}")?;
        let softirqs = SOFTIRQS.into_iter().zip(self.softirqs);
        writeln!(out, "softirqs:{}", list(&mut softirqs.into_iter()))?;
        writeln!(out, "softirqs with received packets {}", self.selected_receives)?;
        let (devices, local) = (self.device_interrupts, self.local_interrupts);
        writeln!(out, "interrupts of devices {devices}, local {local}")
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::path::Path;
    use std::process::Command;

    use super::*;
    use crate::profile::layout::{
        CALL_NAMESPACE, CALL_OTHER, CALL_SEND, CALL_WRITE_FIRST, CALL_WRITE_THIRD, SELECT_CGROUP,
        SELECT_CORE, SELECT_NAMESPACE, SELECT_PROCESS, WORDS,
    };

    #[test]
    fn the_time_since_the_last_event_belongs_to_the_innermost_level() {
        let mut words = [0; WORDS];
        words[SINCE] = 1_500;
        words[BASE] = (1 | SELECTED) as u64;
        words[TIMES + 10] = 500;
        let profile = Profile::new(1_000, 2_000, &[words]);
        assert_eq!(profile.time(Owner::Selected, Part::User).as_nanos(), 500);
        assert_eq!(profile.time(Owner::Rest, Part::Idle).as_nanos(), 500);
        words[SOFTIRQ] = 5;
        words[INTERRUPT] = 9;
        let profile = Profile::new(1_000, 2_000, &[words]);
        assert_eq!(profile.time(Owner::Rest, Part::Interrupt).as_nanos(), 500);
        assert_eq!(profile.sum(), profile.duration);
    }

    #[test]
    fn a_cpu_without_events_counts_as_unknown() {
        let profile = Profile::new(1_000, 2_000, &[[0; WORDS]]);
        assert_eq!(profile.time(Owner::Rest, Part::Unknown).as_nanos(), 1_000);
    }

    #[test]
    fn the_header_has_the_same_layout() {
        let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs");
        let mut source_text = String::from("typedef unsigned long long __u64;\n");
        source_text += "#include \"profile.h\"\n";
        let mut assert_equal = |expression: &str, value: usize| {
            writeln!(source_text, "_Static_assert({expression} == {value}, \"{expression}\");")
                .unwrap();
        };
        assert_equal("sizeof(struct cpu)", size_of::<CpuWords>());
        for (field, word) in [
            ("since", SINCE),
            ("base", BASE),
            ("receive", RECEIVE),
            ("softirq", SOFTIRQ),
            ("interrupt", INTERRUPT),
            ("times", TIMES),
            ("softirqs", SOFTIRQ_COUNTS),
            ("selected_receives", SELECTED_RECEIVES),
            ("device_interrupts", DEVICE_INTERRUPTS),
            ("local_interrupts", LOCAL_INTERRUPTS),
            ("received", RECEIVED),
            ("sent", SENT),
            ("switches", SWITCHES),
            ("socket_writes", SOCKET_WRITES),
            ("calls", CALL_COUNTS),
        ] {
            assert_equal(&format!("__builtin_offsetof(struct cpu, {field})"), word * 8);
        }
        for (name, value) in [
            ("SELECTED", SELECTED),
            ("SLOTS", SLOTS),
            ("CALLS", CALLS),
            ("SELECT_PROCESS", SELECT_PROCESS as usize),
            ("SELECT_CGROUP", SELECT_CGROUP as usize),
            ("SELECT_CORE", SELECT_CORE as usize),
            ("SELECT_NAMESPACE", SELECT_NAMESPACE as usize),
            ("CALL_OTHER", CALL_OTHER.into()),
            ("CALL_SEND", CALL_SEND.into()),
            ("CALL_WRITE_FIRST", CALL_WRITE_FIRST.into()),
            ("CALL_WRITE_THIRD", CALL_WRITE_THIRD.into()),
            ("CALL_NAMESPACE", CALL_NAMESPACE.into()),
            ("PART_UNKNOWN", Part::Unknown.slots()[0]),
            ("PART_USER", Part::User.slots()[0]),
            ("PART_KERNEL", Part::Kernel.slots()[0]),
            ("PART_SOCKET_WRITE", Part::SocketWrite.slots()[0]),
            ("PART_RING_SEND", Part::SocketWrite.slots()[1]),
            ("PART_RECEIVE", Part::Receive.slots()[0]),
            ("PART_DIRECT_RECEIVE", Part::DirectReceive.slots()[0]),
            ("PART_SEND", Part::Send.slots()[0]),
            ("PART_SOFTIRQ", Part::Softirq.slots()[0]),
            ("PART_INTERRUPT", Part::Interrupt.slots()[0]),
            ("PART_IDLE", Part::Idle.slots()[0]),
            ("PART_OTHERS", Part::OtherProcesses.slots()[0]),
        ] {
            assert_equal(name, value);
        }
        let source = std::env::temp_dir().join(format!("profile-layout-{}.c", std::process::id()));
        std::fs::write(&source, source_text).unwrap();
        let mut compiler = Command::new("cc");
        compiler.arg("-fsyntax-only").arg("-I").arg(programs).arg(&source);
        let output = compiler.output().unwrap();
        std::fs::remove_file(&source).unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}
