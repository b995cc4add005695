//! Idle connections to FastCGI servers. Such a server, php-fpm for example, has a number of
//! processes, each of which serves one connection until that is closed. An idle connection occupies
//! its process. A new connection then waits in the queue of the listening socket, even if all
//! processes are idle.
//!
//! So no connection to such an origin stays idle while another one, of any worker, has waited
//! [`PROCESS_WAIT`] for its first response. If there are enough processes, new connections get
//! their responses sooner and all are kept.

use std::time::Duration;

use millrace_engine::{Engine, Instant, Key};

use crate::core::Core;
use crate::exchange::Exchange;
use crate::origin::new_connection::NewConnection;
use crate::origin::{OriginId, Origins, close::close, fastcgi};

/// For how long a new connection waits for its first response before idle ones are closed. A
/// program that takes longer makes others open connections, which cost little beside it.
pub(crate) const PROCESS_WAIT: Duration = Duration::from_millis(10);

impl Origins {
    /// Returns the state of a connection of this exchange that was just opened to the origin `id`.
    /// `None` if its idle connections occupy no process: that of HTTP, and the launcher of CGI
    /// programs.
    pub(super) fn begin_connection(
        &mut self,
        id: OriginId,
        exchange: &Exchange,
    ) -> Option<NewConnection> {
        if !fastcgi::occupies_process(exchange) {
            return None;
        }
        let state = self.state_mut(id);
        state.has_processes = true;
        state.shared.clone().map(NewConnection::new)
    }

    /// Returns whether an idle connection to the origin may keep another one waiting.
    pub(super) fn needs_process(&self, id: OriginId) -> bool {
        let state = self.state(id);
        let shared = state.shared.as_ref().filter(|_| state.has_processes);
        shared.is_some_and(|shared| shared.has_waiting_connections())
    }

    /// Counts the connections of this worker that have waited [`PROCESS_WAIT`] for their first
    /// response.
    pub(crate) fn count_waiting(&mut self, now: Instant) {
        while let Some(&(opened, slot)) = self.new_connections.front() {
            let connection = self.connections.get_mut(slot);
            let new = connection.and_then(|connection| connection.new.as_mut());
            if new.is_some() && now < opened + PROCESS_WAIT {
                break;
            }
            self.new_connections.pop_front();
            new.into_iter().for_each(NewConnection::count);
        }
    }
}

/// Closes the idle connections that may keep others waiting.
pub(crate) fn close_idle<E: Engine>(core: &mut Core<E>) {
    let origins = &mut core.origins;
    origins.has_idle_processes = false;
    let mut surplus: Vec<Key> = Vec::new();
    for id in (0..origins.states.len() as u32).map(OriginId) {
        let Some(state) = &origins.states[id.0 as usize] else { continue };
        if !state.has_processes || state.idle.is_empty() {
            continue;
        }
        match origins.needs_process(id) {
            true => surplus.extend(&state.idle),
            false => origins.has_idle_processes = true,
        }
    }
    for slot in surplus {
        close(core, slot);
    }
}
