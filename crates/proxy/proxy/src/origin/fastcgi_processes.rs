//! Connections to FastCGI servers. Such a server, php-fpm for example, has a number of processes,
//! each of which serves one connection until that is closed. An idle connection occupies its
//! process. A new connection then waits in the queue of the listening socket, even if all processes
//! are idle.
//!
//! So an idle connection to such an origin is closed for each one, of any worker, that has waited
//! twice as long for its first response as others wait for theirs. If there are enough processes,
//! new connections get their responses sooner and all are kept.

use millrace_engine::{Engine, Instant, Key, Table};

use crate::core::Core;
use crate::exchange::Exchange;
use crate::origin::process_waits::{NewConnection, Processes};
use crate::origin::{OriginConn, OriginId, Origins, close::close, fastcgi};

impl Origins {
    /// Notes that a connection of this exchange, `slot`, was just opened to the origin `id`. Has no
    /// effect if idle connections occupy no process there: for HTTP, and for the launcher of CGI
    /// programs.
    pub(super) fn note_opened(
        &mut self,
        id: OriginId,
        slot: Key,
        exchange: &Exchange,
        now: Instant,
    ) {
        if !fastcgi::occupies_process(exchange) {
            return;
        }
        let state = self.states[id.0 as usize].as_mut().expect("the exchange has picked it");
        let Some(shared) = &state.shared else { return };
        let processes = state
            .processes
            .get_or_insert_with(|| Box::new(Processes::new(shared.process_waits.clone())));
        processes.new.push_back((now, slot));
        self.has_new_processes = true;
        let connection = self.connections.get_mut(slot).expect("opened just now");
        connection.first_response = Some(NewConnection::new(processes.waits.clone()));
    }

    /// Notes that the origin has kept a connection.
    #[inline]
    pub(super) fn note_kept(&mut self, id: OriginId) {
        if let Some(processes) = &mut self.state_mut(id).processes {
            processes.keeps_connections = true;
        }
    }

    /// Returns whether the origin may close each connection after its response without an
    /// announcement.
    #[inline]
    pub(super) fn may_end_idle(&self, id: OriginId) -> bool {
        self.state(id).processes.as_ref().is_some_and(|processes| !processes.keeps_connections)
    }

    /// Claims the process of a connection that could become idle. Returns whether the connection
    /// has to be closed, because another one waits.
    pub(super) fn claim_process(&mut self, id: OriginId, now: Instant) -> bool {
        let state = self.states[id.0 as usize].as_mut();
        let Some(processes) = state.and_then(|state| state.processes.as_mut()) else {
            return false;
        };
        count_waiting(processes, &mut self.connections, now);
        processes.waits.claim_process(now)
    }
}

/// Counts the connections that have waited long for their first response.
fn count_waiting(processes: &mut Processes, connections: &mut Table<OriginConn>, now: Instant) {
    let wait = processes.waits.wait();
    while let Some(&(opened, slot)) = processes.new.front() {
        let waiting =
            connections.get_mut(slot).and_then(|connection| connection.first_response.as_mut());
        if waiting.is_some() && now < opened + wait {
            break;
        }
        processes.new.pop_front();
        waiting.into_iter().for_each(NewConnection::mark_waiting);
    }
}

/// Counts the connections that wait for a process, and closes idle ones for them.
pub(crate) fn maintain<E: Engine>(core: &mut Core<E>, now: Instant) {
    let origins = &mut core.origins;
    (origins.has_idle_processes, origins.has_new_processes) = (false, false);
    let mut surplus: Vec<Key> = Vec::new();
    for id in (0..origins.states.len() as u32).map(OriginId) {
        let Some(state) = &mut origins.states[id.0 as usize] else { continue };
        let Some(processes) = &mut state.processes else { continue };
        count_waiting(processes, &mut origins.connections, now);
        let has_waiting = processes.waits.has_waiting() && !state.idle.is_empty();
        origins.has_new_processes |= has_waiting || !processes.new.is_empty();
        let takes = |_: &&Key| processes.waits.claim_process(now);
        let yielded = state.idle.iter().take_while(takes).count();
        origins.has_idle_processes |= yielded < state.idle.len();
        surplus.extend(&state.idle[..yielded]);
    }
    for slot in surplus {
        close(core, slot);
    }
}
