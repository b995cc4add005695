//! `check --acme`: test orders by the running process, or at the addresses of the configuration if
//! no process runs.

use std::sync::Arc;
use std::time::Duration;

use millrace_config::{AdminRequest, Config, ConfigError, ListenAddress};
use millrace_proxy::SharedState;

use super::challenge::HttpChallenges;
use super::challenge_listener;
use super::control::{orders_checksum, settings};
use super::http_listener::{HttpListeners, OpenTime};
use super::test_order::{TestOrder, TestResult, joined};
use crate::admin::{ORDERS_PARAMETER, TEST_ORDERS_PATH};
use crate::program_error::ProgramError;
use crate::{cache_cli, console};

/// Time that the running process gets for its test orders.
const TIMEOUT: Duration = Duration::from_secs(900);

/// Places a test order for each certificate of a configuration, and prints a line for each.
///
/// # Errors
/// One line with the failures.
pub(crate) fn run(config: &Config) -> Result<(), ProgramError> {
    if settings(config).next().is_none() {
        let wrong = "the configuration orders no certificate";
        return Err(ConfigError::rule("--acme", wrong, "a service with the option acme").into());
    }
    let result = match by_running_process(config)? {
        Some(result) => result,
        None => by_this_process(config)?,
    };
    match result {
        Ok(lines) => console::write_result(&format!("{}\n", lines.trim_end())),
        Err(line) => Err(ProgramError::System(line)),
    }
}

/// Returns the result of the process that listens at an admin address; `None` if there is none.
fn by_running_process(config: &Config) -> Result<Option<TestResult>, ProgramError> {
    // The configuration does not have the authorities of an address with TLS.
    for admin in config.admin.iter().filter(|admin| !admin.tls) {
        let is_tcp = matches!(admin.address, ListenAddress::Tcp(_));
        let request = AdminRequest {
            path: TEST_ORDERS_PATH,
            is_change: true,
            query: vec![(ORDERS_PARAMETER, orders_checksum(config))],
            admin: admin.clone(),
            ca_file: None,
            server_name: None,
            token_file: config.admin_token_file.clone().filter(|_| is_tcp),
        };
        match cache_cli::send(&request, TIMEOUT)? {
            Some((200, lines)) => return Ok(Some(Ok(lines))),
            Some((_, line)) => return Ok(Some(Err(line.trim_end().to_owned()))),
            None => {}
        }
    }
    Ok(None)
}

fn by_this_process(config: &Config) -> Result<TestResult, ProgramError> {
    let shared = SharedState::new(1, "check".to_owned(), None, None, |_| {}, None);
    let http = Arc::<HttpChallenges>::default();
    challenge_listener::start(config, &shared)?;
    let _http_thread = HttpListeners::open(config, OpenTime::Start).start(&http)?;
    let sleep = |wait| {
        std::thread::sleep(wait);
        false
    };
    let order = TestOrder { shared: &shared, http: &http, sleep: &sleep };
    Ok(joined(settings(config).map(|acme| order.run(acme))))
}
