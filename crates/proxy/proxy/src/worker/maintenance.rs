//! Housekeeping: what a worker does now and then, and for no single connection. Each duty is one
//! row of [`Worker::DUTIES`], which says when there is something to do and what that is; so no
//! turn waits without an end over a duty that is to be done.

use std::time::Duration;

use millrace_engine::{Engine, Instant};

use crate::auth;
use crate::origin::{self, EjectRules};
use crate::overload::wait_list;
use crate::worker::Worker;

/// Something to be done now and then.
struct Duty<E: Engine> {
    /// Whether there is something to do: looked at each turn, so that the worker wakes for it.
    is_due: fn(&Worker<E>) -> bool,
    /// Does it.
    perform: fn(&mut Worker<E>, Instant),
}

impl<E: Engine> Worker<E> {
    /// In the order in which they are done: what ends connections comes before what asks whether
    /// there is room.
    const DUTIES: [Duty<E>; 12] = [
        Duty {
            is_due: |worker| worker.accepting.is_any_retiring(),
            perform: |worker, _| worker.accepting.close_retired(&mut worker.engine),
        },
        Duty {
            is_due: |worker| worker.snapshots.has_idle,
            perform: |worker, _| worker.close_gone(),
        },
        Duty {
            is_due: |worker| worker.clients.has_news(),
            perform: |worker, _| worker.clients.tell(&worker.shared.all_clients),
        },
        Duty {
            is_due: |worker| worker.origins.has_news(),
            perform: |worker, now| {
                let rules = EjectRules::new(worker.snapshot.limits());
                let ejected = worker.origins.tell_news(now, &rules, &worker.shared.board);
                worker.counters.origin_ejections.add(ejected);
            },
        },
        Duty {
            is_due: |worker| !worker.records.is_empty(),
            perform: |worker, _| worker.flush_records(),
        },
        Duty { is_due: |worker| !worker.waiting.is_empty(), perform: wait_list::give_up_waiting },
        Duty { is_due: |worker| worker.origins.queued() > 0, perform: origin::give_up_lines },
        Duty {
            is_due: |worker| worker.gate.has_asked(),
            perform: |worker, _| auth::give_up(worker),
        },
        Duty {
            is_due: |worker| !worker.fills.is_empty(),
            perform: |worker, now| worker.leave_slow_askers(now),
        },
        Duty {
            is_due: |worker| worker.pipes.open() > 0,
            perform: |worker, _| worker.pipes.shed(&mut worker.engine),
        },
        Duty {
            is_due: |worker| worker.draining,
            perform: |worker, _| {
                worker.close_idle();
                if worker.accepting.may_end() {
                    worker.accepting.end(&mut worker.engine);
                }
            },
        },
        Duty {
            is_due: |worker| worker.lacks_room() || !worker.room.forgiven.is_whole(),
            perform: |worker, _| worker.look_for_room(),
        },
    ];

    /// At the end of each turn: shows how the worker stands, does the duties when they are due, and
    /// sets a time for those that there are.
    pub(crate) fn keep_house(&mut self, now: Instant) {
        self.show_gauges();
        if self.records.len() >= RECORDS_FLUSH_BYTES {
            self.flush_records();
        }
        if self.housekeeping.is_some_and(|due| due <= now) {
            self.housekeeping = None;
            for duty in &Self::DUTIES {
                if (duty.is_due)(self) {
                    (duty.perform)(self, now);
                }
            }
        }
        self.make_up_for_missed();
        self.forget_snapshots();
        let due = now + if self.lacks_room() { LACKING } else { HOUSEKEEPING };
        let is_sooner = self.housekeeping.is_none_or(|set| due < set);
        if is_sooner && Self::DUTIES.iter().any(|duty| (duty.is_due)(self)) {
            self.housekeeping = Some(due);
        }
    }

    fn show_gauges(&self) {
        self.counters.connections.set(self.conns.len() as u64);
        self.counters.exchanges_open.set(self.exchanges.len() as u64);
        self.counters.origin_connections.set(self.origins.connections.len() as u64);
        self.counters.origin_requests_queued.set(self.origins.queued() as u64);
        self.counters.pipes.set(self.pipes.open() as u64);
        self.counters.pipes_refused.set(self.pipes_refused_before + self.pipes.refused());
        self.counters.listeners.set(self.accepting.len() as u64);
        self.counters.held_bytes.set(self.engine.budget().used() as u64);
    }

    pub(crate) fn flush_records(&mut self) {
        if !self.records.is_empty() {
            self.engine.log(&self.records);
            self.records.clear();
        }
    }
}

/// How often counts are exchanged and records written.
pub(crate) const HOUSEKEEPING: Duration = Duration::from_millis(100);
/// The same while room is lacking.
pub(crate) const LACKING: Duration = Duration::from_millis(20);
/// Records are given to the engine when there are so many bytes of them, or by housekeeping.
const RECORDS_FLUSH_BYTES: usize = 64 * 1024;
