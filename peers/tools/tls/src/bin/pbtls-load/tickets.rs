//! The tickets of earlier connections, oldest first.

use std::collections::VecDeque;
use std::sync::Mutex;

use rustls::NamedGroup;
use rustls::client::{ClientSessionStore, Tls12ClientSessionValue, Tls13ClientSessionValue};
use rustls::pki_types::ServerName;

/// Tickets that are kept; more than connections are under way, unlike in the store of rustls.
const TICKETS_MAX: usize = 4096;

/// Tickets of one server, each used once.
#[derive(Debug, Default)]
pub struct Tickets(Mutex<VecDeque<Tls13ClientSessionValue>>);

impl ClientSessionStore for Tickets {
    fn set_kx_hint(&self, _server: ServerName<'static>, _group: NamedGroup) {}

    /// Only one group is offered.
    fn kx_hint(&self, _server: &ServerName<'_>) -> Option<NamedGroup> {
        None
    }

    fn set_tls12_session(&self, _server: ServerName<'static>, _value: Tls12ClientSessionValue) {}

    fn tls12_session(&self, _server: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        None
    }

    fn remove_tls12_session(&self, _server: &ServerName<'static>) {}

    fn insert_tls13_ticket(&self, _server: ServerName<'static>, value: Tls13ClientSessionValue) {
        if let Ok(mut tickets) = self.0.lock() {
            tickets.push_back(value);
            if tickets.len() > TICKETS_MAX {
                tickets.pop_front();
            }
        }
    }

    fn take_tls13_ticket(&self, _server: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.0.lock().ok()?.pop_front()
    }
}
