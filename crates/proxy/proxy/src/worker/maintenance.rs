//! Maintenance: periodic tasks of a worker that belong to no single connection. Each task is one
//! row of [`Worker::TASKS`] with its condition and its action. A turn never waits without a
//! deadline while a task is due.

use millrace_engine::{Engine, Instant};

use crate::auth;
use crate::cached::fill;
use crate::core::Core;
use crate::exchange::{Event, EventTarget, Reason};
use crate::origin::process_waits::PROCESS_WAIT_MIN;
use crate::origin::{fastcgi_processes, queue};
use crate::overload::{SHORTAGE_CHECK_INTERVAL, capacity, shed, wait_list};
use crate::transfer::file_wait;
use crate::worker::{MAINTENANCE_INTERVAL, Worker, reconfigure};

/// A periodic task.
struct Task<E: Engine> {
    /// Whether there is work to do. Checked each turn, so that the worker wakes up for it.
    is_due: fn(&Worker<E>) -> bool,
    /// Does the work.
    perform: fn(&mut Worker<E>, Instant),
}

impl<E: Engine> Worker<E> {
    /// The tasks in the order in which they run. Tasks that close connections come before the task
    /// that looks for free capacity.
    const TASKS: [Task<E>; 14] = [
        Task {
            is_due: |worker| worker.core.listeners.has_retiring(),
            perform: |worker, _| worker.core.listeners.close_retired(&mut worker.core.engine),
        },
        Task {
            is_due: |worker| worker.core.snapshots.has_idle_on_removed,
            perform: |worker, _| reconfigure::close_idle_of_removed(&mut worker.core),
        },
        Task {
            is_due: |worker| {
                let origins = &worker.core.origins;
                origins.has_idle_processes || origins.has_new_processes
            },
            perform: |worker, now| fastcgi_processes::maintain(&mut worker.core, now),
        },
        Task {
            is_due: |worker| worker.core.overload.clients.has_changes(),
            perform: |worker, _| {
                worker.core.overload.clients.publish(&worker.core.shared.all_clients)
            },
        },
        Task {
            is_due: |worker| worker.core.origins.has_pending_reports(),
            perform: |worker, now| worker.sync_health(now),
        },
        Task {
            is_due: |worker| !worker.core.log.records.is_empty(),
            perform: |worker, _| worker.flush_records(),
        },
        Task {
            is_due: |worker| !worker.core.overload.wait_list.is_empty(),
            perform: |worker, now| {
                for key in wait_list::overdue(&worker.core, now) {
                    worker.drive(EventTarget::Exchange(key), Event::End(Reason::Overloaded));
                }
            },
        },
        Task {
            is_due: |worker| !worker.core.overload.refused_reads.is_empty(),
            perform: |worker, _| file_wait::retry(&mut worker.core),
        },
        Task {
            is_due: |worker| worker.core.origins.queued_count() > 0,
            perform: |worker, now| worker.refuse_overdue_queued(now),
        },
        Task {
            is_due: |worker| worker.core.authenticator.has_pending(),
            perform: |worker, now| {
                let snapshot = worker.core.snapshot.clone();
                for key in worker.core.authenticator.expire_waiters(now, snapshot.limits()) {
                    let event = auth::handle_result(&mut worker.core, key, &Err(Reason::AuthBusy));
                    worker.drive_if_any(event);
                }
            },
        },
        Task {
            is_due: |worker| !worker.core.fills.is_empty(),
            perform: |worker, now| {
                let fills = fill::run::drop_slow_leaders(&mut worker.core, now);
                worker.drive_fills(fills, Event::Woken);
            },
        },
        Task {
            is_due: |worker| worker.core.pipes.open() > 0,
            perform: |worker, _| worker.core.pipes.trim(&mut worker.core.engine),
        },
        Task {
            is_due: |worker| worker.core.drain.is_draining,
            perform: |worker, _| worker.continue_drain(),
        },
        Task {
            is_due: |worker| {
                capacity::is_short(&worker.core) || !worker.core.overload.is_grace_max()
            },
            perform: |worker, _| worker.relieve_overload(),
        },
    ];

    /// Runs at the end of each turn: publishes the gauges, runs the tasks if their time has come,
    /// and sets the next time if any task is due.
    pub(super) fn run_maintenance(&mut self, now: Instant) {
        self.publish_gauges();
        if self.core.log.records.len() >= RECORDS_FLUSH_BYTES {
            self.flush_records();
        }
        if self.maintenance.is_some_and(|due| due <= now) {
            self.maintenance = None;
            for task in &Self::TASKS {
                if (task.is_due)(self) {
                    (task.perform)(self, now);
                }
            }
        }
        if let Some(shedding) = shed::shed_for_unmet_demand(&mut self.core) {
            self.shed(shedding);
        }
        reconfigure::drop_unused_snapshots(&mut self.core);
        let due = now
            + if capacity::is_short(&self.core) {
                SHORTAGE_CHECK_INTERVAL
            } else if self.core.origins.has_new_processes {
                PROCESS_WAIT_MIN
            } else {
                MAINTENANCE_INTERVAL
            };
        let is_sooner = self.maintenance.is_none_or(|set| due < set);
        if is_sooner && Self::TASKS.iter().any(|task| (task.is_due)(self)) {
            self.maintenance = Some(due);
        }
    }

    fn sync_health(&mut self, now: Instant) {
        let Core { origins, shared, counters, snapshot, .. } = &mut self.core;
        let ejected = origins.publish_pending(now, snapshot.limits(), &shared.health);
        counters.origin_ejections.add(ejected);
    }

    /// Refuses the exchanges that have waited too long in the queues of their origins.
    fn refuse_overdue_queued(&mut self, now: Instant) {
        for key in queue::overdue(&mut self.core, now) {
            if queue::is_queued(&self.core, key) {
                self.core.counters.origin_queue_refusals.add(1);
                self.drive(EventTarget::Exchange(key), Event::End(Reason::OriginBusy));
            }
        }
    }

    /// Closes idle connections, and closes the listeners once they are quiet.
    fn continue_drain(&mut self) {
        self.close_idle();
        let core = &mut self.core;
        if core.listeners.check_drained() {
            core.listeners.close_all(&mut core.engine);
        }
    }

    /// Frees capacity for clients and requests that wait for it.
    fn relieve_overload(&mut self) {
        if let Some(shedding) = shed::shed_for_waiters(&mut self.core) {
            self.shed(shedding);
            self.core.overload.unmet.requests = 0;
        }
        let reader = shed::shed_cache_reader(&mut self.core);
        self.drive_if_any(reader);
        capacity::resume_accepting(&mut self.core);
    }

    pub(super) fn publish_gauges(&self) {
        let core = &self.core;
        let counters = &core.counters;
        counters.connections.set(core.conns.len() as u64);
        counters.exchanges_open.set(core.exchanges.len() as u64);
        counters.origin_connections.set(core.origins.connections.len() as u64);
        counters.origin_requests_queued.set(core.origins.queued_count() as u64);
        counters.pipes.set(core.pipes.open() as u64);
        counters.pipes_refused.set(self.pipes_refused_before + core.pipes.refusals());
        counters.listeners.set(core.listeners.len() as u64);
        counters.buffered_bytes.set(core.engine.budget().used() as u64);
    }

    /// Passes the buffered records of the access log to the engine.
    pub(super) fn flush_records(&mut self) {
        let records = &mut self.core.log.records;
        if !records.is_empty() {
            self.core.engine.log(records);
            records.clear();
        }
    }
}

/// The access log is flushed when this many bytes are buffered, or by the next maintenance.
const RECORDS_FLUSH_BYTES: usize = 64 * 1024;
