//! `millrace demo`: a reverse proxy in front of a small web server, both in this process and on
//! loopback. It prints a line about each group of requests.

use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use millrace_config::{self as config, Command, ListenAddress};
use millrace_proxy::counters::Counters;

use crate::config_source::ConfigSource;
use crate::program_error::ProgramError;
use crate::supervisor::Running;
use crate::{console, demo_site};

/// The preferred port of the proxy.
const PORT: u16 = 8080;
/// The preferred port of the admin address.
const ADMIN_PORT: u16 = 9180;
/// Interval at which the counters are read and a line may be printed.
const REPORT_INTERVAL: Duration = Duration::from_millis(250);

/// Runs the demo until a signal ends it.
///
/// # Errors
/// If the system refuses sockets or threads.
pub(crate) fn run() -> Result<(), ProgramError> {
    let failed = |error: std::io::Error| {
        ProgramError::System(format!("cannot start the web server: {error}"))
    };
    let origin = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
    let origin_address = origin.local_addr().map_err(failed)?;
    let admin = free_address(ADMIN_PORT).map_err(failed)?;
    let words = [
        "millrace".to_owned(),
        "boost".to_owned(),
        format!("--origin=http://{origin_address}"),
        format!("--listen={}", free_address(PORT).map_err(failed)?),
        format!("--admin={admin}"),
    ];
    let Command::Serve(options) = config::command(words.map(OsString::from))? else {
        unreachable!("boost serves");
    };
    let source = ConfigSource::of_command_line(options);
    let running = Running::start(source.read()?, source, false)?;
    // The site starts after `Running::start`, which blocks signals, because the threads of the site
    // inherit the blocked signals.
    demo_site::start(origin)?;
    let [ListenAddress::Tcp(address)] = running.addresses()[..] else {
        unreachable!("the demo listens on one TCP address");
    };
    // The demo continues if nothing reads its output.
    let _ = console::write_result(&welcome(address, admin, origin_address));
    let mut before = Totals::default();
    running.wait(Some(REPORT_INTERVAL), |counters| {
        let now = Totals::of(counters);
        if let Some(line) = now.line_since(&before) {
            let _ = console::write_result(&line);
            before = now;
        }
    })
}

/// Returns the loopback address with `port`, or with a free port if that one is in use.
fn free_address(port: u16) -> std::io::Result<SocketAddr> {
    let wanted = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    match TcpListener::bind(wanted) {
        Ok(listener) => listener.local_addr(),
        Err(_) => TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr(),
    }
}

fn welcome(address: SocketAddr, admin: SocketAddr, origin: SocketAddr) -> String {
    format!(
        "
  millrace runs as a reverse proxy in front of a small web server ({origin}).

  In a browser:         http://{address}/
  In another terminal:  curl -v http://{address}/
                        curl -o /dev/null http://{address}/pattern
                        for i in 1 2 3 4 5 6; do curl -so /dev/null http://{address}/; done
                        for i in 1 2; do curl -so /dev/null -D - http://{address}/wheel.svg; done
                        curl http://{admin}/cache/stat
                        curl http://{admin}/metrics

  /wheel.svg may be cached. The Cache-Status field of a response shows what the cache did.

  Press Ctrl-C to end. Requests are reported here:

"
    )
}

/// The sums of the counters of all workers.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Totals {
    exchanges: u64,
    own: u64,
    accepted: u64,
    opened: u64,
    reused: u64,
    hits: u64,
    bytes: u64,
    spliced: u64,
}

impl Totals {
    fn of(workers: &[Arc<Counters>]) -> Self {
        let sum = |read: fn(&Counters) -> u64| workers.iter().map(|worker| read(worker)).sum();
        Self {
            exchanges: sum(|counters| counters.exchanges.get()),
            own: sum(|counters| counters.responses_generated.sum()),
            accepted: sum(|counters| counters.connections_accepted.get()),
            opened: sum(|counters| counters.origin_connections_opened.get()),
            reused: sum(|counters| counters.origin_connections_reused.get()),
            hits: sum(|counters| counters.cache_hits.get()),
            bytes: sum(|counters| counters.uploaded_bytes.get() + counters.downloaded_bytes.get()),
            spliced: sum(|counters| counters.spliced_bytes.get()),
        }
    }

    /// Returns a line about the time since `before` if a request ended in it.
    fn line_since(&self, before: &Self) -> Option<String> {
        let exchanges = self.exchanges.checked_sub(before.exchanges).filter(|count| *count > 0)?;
        let mut line = format!(
            "  {} over {}: {} to the server opened, {} reused",
            format_count(exchanges, "request"),
            format_count(self.accepted - before.accepted, "new connection"),
            format_count(self.opened - before.opened, "connection"),
            self.reused - before.reused,
        );
        if self.hits > before.hits {
            let hits = format_count(self.hits - before.hits, "request");
            line.push_str(&format!(", {hits} served from the cache"));
        }
        line.push_str(&format!(
            "; {} of bodies forwarded",
            console::format_bytes(self.bytes - before.bytes)
        ));
        if self.spliced > before.spliced {
            let spliced = console::format_bytes(self.spliced - before.spliced);
            line.push_str(&format!(", {spliced} of them spliced in the kernel"));
        }
        if self.own > before.own {
            let own = format_count(self.own - before.own, "response");
            line.push_str(&format!("; {own} generated by millrace"));
        }
        line.push_str(&format!(
            ".\n    Total: {} and {} to the server; {} saved.\n",
            format_count(self.exchanges, "request"),
            format_count(self.opened, "connection"),
            self.exchanges.saturating_sub(self.own).saturating_sub(self.opened),
        ));
        Some(line)
    }
}

fn format_count(count: u64, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_port_is_replaced_by_a_free_one_on_loopback() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let free = free_address(port).unwrap();
        assert!(free.port() != port && free.ip().is_loopback());
    }

    #[test]
    fn lines_report_the_saved_connections() {
        let before = Totals { exchanges: 2, opened: 1, ..Totals::default() };
        let now = Totals { exchanges: 5, opened: 2, reused: 2, accepted: 1, ..Totals::default() };
        let now = Totals { hits: 1, bytes: 2048, spliced: 1024, ..now };
        assert_eq!(now.line_since(&now), None);
        assert_eq!(
            now.line_since(&before).unwrap(),
            "  3 requests over 1 new connection: 1 connection to the server opened, 2 reused, \
             1 request served from the cache; 2.0 KB of bodies forwarded, 1.0 KB of them spliced \
             in the kernel.\n    Total: 5 requests and 2 connections to the server; 3 saved.\n"
        );
    }
}
