//! TLS of the admin addresses.

use std::io::{Error, ErrorKind, Result};
use std::sync::Mutex;

use millrace_config::AdminTls;
use millrace_tls::{
    Aead, ClientHello, Clock, Provider, ServerOptions, ServerSettings, Session, TlsError,
};

use crate::console;
use crate::threads::lock;

/// The settings with which connections are secured. No session is resumed: requests are rare.
#[derive(Default)]
pub(super) struct AdminTlsSettings {
    settings: Mutex<Option<ServerSettings>>,
    clock: Clock,
}

impl AdminTlsSettings {
    /// Replaces the certificate. Sessions in progress keep theirs.
    pub(super) fn set(&self, tls: Option<&AdminTls>) {
        let created = tls.map(|tls| self.create(tls)).transpose();
        match created {
            Ok(settings) => *lock(&self.settings) = settings,
            Err(error) => console::log(&format!("cannot use the certificate of admin: {error}")),
        }
    }

    fn create(&self, tls: &AdminTls) -> std::result::Result<ServerSettings, TlsError> {
        let certificate = tls.certificate.clone().expect("read with the configuration");
        let options = ServerOptions {
            certificates: vec![certificate],
            alpn: vec![b"http/1.1".to_vec()],
            ..ServerOptions::default()
        };
        ServerSettings::new(options, &Provider::new(Aead::fastest()), &self.clock)
    }

    /// Begins the session of a connection.
    ///
    /// # Errors
    /// If there is no certificate, or no randomness.
    pub(super) fn accept(&self) -> Result<Session> {
        let settings = lock(&self.settings).clone().ok_or(ErrorKind::Unsupported)?;
        self.clock.set(millrace_sys::time_of_day());
        // The only certificate is used for every name.
        settings.accept(&ClientHello::default()).map_err(Error::other)
    }
}
