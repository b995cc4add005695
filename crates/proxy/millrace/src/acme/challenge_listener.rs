//! A listener for the challenge tls-alpn-01 in a process without workers.

use std::io::{Error, ErrorKind, Result};
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_config::{Config, ListenAddress};
use millrace_proxy::SharedState;
use millrace_tls::{ClientHello, Clock, HELLO_BYTES_MAX, Peek};

use crate::admin::ConnectionLimit;
use crate::http::{Connection, Socket};
use crate::listeners::listen_error;
use crate::program_error::ProgramError;
use crate::threads::spawn;

/// Time from accepting a connection to the end of its handshake.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
/// Time between two looks at an incomplete ClientHello, and between two attempts to accept.
const PAUSE: Duration = Duration::from_millis(10);

/// Serves the challenges of `shared` at the TLS addresses of the services with the option `acme`,
/// until the process ends.
///
/// # Errors
/// If an address cannot be opened, for example because another process has it open.
pub(super) fn start(
    config: &Config,
    shared: &Arc<SharedState>,
) -> std::result::Result<(), ProgramError> {
    let has_acme = |service: usize| {
        config.services[service].tls.as_ref().is_some_and(|tls| tls.acme.is_some())
    };
    for listener in config.listeners.iter().filter(|it| it.tls && has_acme(it.service)) {
        let ListenAddress::Tcp(address) = listener.address else { continue };
        // A socket without SO_REUSEPORT detects another process.
        let socket = millrace_sys::listen_tcp(address, false);
        let socket = socket.map_err(|error| {
            let error = listen_error(&address, error);
            let hint = "a running process needs an admin address to place test orders";
            ProgramError::System(format!("{error} ({hint})"))
        })?;
        let socket = TcpListener::from(socket);
        let failed = |error| ProgramError::system(format!("cannot accept at {address}"), error);
        socket.set_nonblocking(false).map_err(failed)?;
        let shared = Arc::clone(shared);
        spawn("acme-tls", move || accept(&socket, &shared))?;
    }
    Ok(())
}

fn accept(socket: &TcpListener, shared: &Arc<SharedState>) {
    let limit = Arc::<ConnectionLimit>::default();
    for client in socket.incoming() {
        let Ok(client) = client else {
            // The process has no free descriptor, or the client has gone.
            std::thread::sleep(PAUSE);
            continue;
        };
        let Ok(connection) = Connection::new(client.into(), false) else { continue };
        let Some(permit) = limit.acquire(connection.socket()) else { continue };
        let shared = Arc::clone(shared);
        // An error means that the client is gone or too slow, or that no thread could be started.
        let _ = spawn("acme-tls-connection", move || {
            let _ = serve(connection, &shared);
            drop(permit);
        });
    }
}

fn serve(mut connection: Connection, shared: &SharedState) -> Result<()> {
    connection.set_deadline(Instant::now() + CONNECTION_TIMEOUT);
    let hello = read_hello(connection.socket())?;
    let clock = Clock::default();
    clock.set(millrace_sys::time_of_day());
    let settings = shared.challenges.settings(&hello, &shared.tls_provider, &clock);
    let settings = settings.map_err(Error::other)?.ok_or(ErrorKind::Unsupported)?;
    connection.secure(settings.accept(&hello).map_err(Error::other)?)?;
    connection.finish(0);
    Ok(())
}

/// Returns the ClientHello, which remains in the receive queue.
fn read_hello(socket: &Socket) -> Result<ClientHello> {
    let Socket::Tcp(stream) = socket else { return Err(ErrorKind::Unsupported.into()) };
    let (deadline, mut bytes) = (Instant::now() + CONNECTION_TIMEOUT, vec![0; HELLO_BYTES_MAX]);
    stream.set_read_timeout(Some(CONNECTION_TIMEOUT))?;
    while Instant::now() < deadline {
        let count = stream.peek(&mut bytes)?;
        match millrace_tls::peek(&bytes[..count]) {
            Peek::Hello(hello) => return Ok(hello),
            Peek::Failed { error, .. } => return Err(Error::other(error)),
            Peek::Incomplete if count == 0 => return Err(ErrorKind::UnexpectedEof.into()),
            // The rest follows soon; the kernel has no wake-up for it.
            Peek::Incomplete => std::thread::sleep(PAUSE),
        }
    }
    Err(ErrorKind::TimedOut.into())
}
