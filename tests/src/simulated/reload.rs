//! Reloads and changes of files in the simulated world. [`Reloader`] takes the place of the
//! supervisor: it parses the other configuration with the program's own parser, opens new
//! listeners, and notifies the workers.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use millrace_config::{self as config, Config, ListenAddress};
use millrace_engine::{Address, MailboxSender};
use millrace_proxy::counters::Counters;
use millrace_proxy::{SharedState, WorkerMessage};
use millrace_sim::{SimDetached, SimWaker, World};

use super::folders::SimFolders;
use super::tls::TlsSettings;
use super::verifier::load_users;
use crate::scenario::{RunnerTask, ScriptSignals, TaskNumber};

/// Returns the address at which clients connect to a listener.
pub(super) fn address_of(address: &ListenAddress) -> Address {
    match address {
        ListenAddress::Tcp(address) => Address::Tcp(*address),
        ListenAddress::Unix(path) => Address::Unix(path.as_path().into()),
    }
}

/// Mailboxes of the workers.
pub(super) type WorkerMailboxes =
    Rc<RefCell<Vec<MailboxSender<WorkerMessage<SimDetached>, SimWaker>>>>;

/// Performs the reloads and the changes of files that scripts request, one at a time.
pub(super) struct Reloader {
    /// The complete command lines, by name.
    pub(super) commands: Vec<(String, Vec<String>)>,
    pub(super) signals: ScriptSignals,
    pub(super) mailboxes: WorkerMailboxes,
    pub(super) shared: Arc<SharedState>,
    /// The configuration that is in force or was sent to the workers.
    pub(super) config: Arc<Config>,
    /// The configuration as it was parsed, with the ports that it names.
    pub(super) parsed: Config,
    /// All listeners so far, by their numbers: the configured address, the actual address, and
    /// whether the listener is open.
    pub(super) addresses: Vec<(ListenAddress, ListenAddress, bool)>,
    /// The reload that was sent to the workers but not yet applied by all of them.
    pub(super) pending: Option<TaskNumber>,
    pub(super) folders: Rc<SimFolders>,
}

impl Reloader {
    /// Creates a reloader for a proxy that begins with `config`, which was parsed as `parsed`.
    pub(super) fn new(
        commands: Vec<(String, Vec<String>)>,
        signals: &ScriptSignals,
        (mailboxes, shared): (&WorkerMailboxes, &Arc<SharedState>),
        (parsed, config): (Config, &Arc<Config>),
        folders: &Rc<SimFolders>,
    ) -> Self {
        let pairs = parsed.listeners.iter().zip(&config.listeners);
        let addresses = pairs
            .map(|(request, actual)| (request.address.clone(), actual.address.clone(), true))
            .collect();
        Self {
            commands,
            signals: signals.clone(),
            mailboxes: mailboxes.clone(),
            shared: shared.clone(),
            config: config.clone(),
            parsed,
            addresses,
            pending: None,
            folders: folders.clone(),
        }
    }

    /// Finishes the pending reload if all workers have applied it, and begins the next one.
    pub(super) fn step(&mut self, world: &World, tls: Option<&TlsSettings>) {
        if let Some(request) = self.pending {
            let number = self.config.number;
            let has = |counters: &Arc<Counters>| counters.config_generation.get() == number;
            if !self.shared.counters.iter().all(has) {
                return;
            }
            self.pending = None;
            self.signals.finish_task(request, Ok(()));
        }
        match self.signals.pending_task() {
            Some((request, RunnerTask::Reload(name))) => match self.reload(world, &name, tls) {
                Ok(()) => self.pending = Some(request),
                Err(why) => self.signals.finish_task(request, Err(why)),
            },
            Some((request, RunnerTask::Write(change))) => {
                self.signals.finish_task(request, self.folders.change(world, &change));
            }
            None => {}
        }
    }

    fn reload(
        &mut self,
        world: &World,
        name: &str,
        tls: Option<&TlsSettings>,
    ) -> Result<(), String> {
        let found = self.commands.iter().find(|(known, _)| known == name);
        let (_, words) = found.ok_or(format!("no configuration is called {name}"))?;
        let mut parsed = config::from_arguments(words).map_err(|wrong| wrong.to_string())?;
        load_users(&mut parsed)?;
        if let Some(tls) = tls {
            tls.set_content(&mut parsed);
        }
        self.folders.set_content(&mut parsed);
        config::check_reload(name, &self.parsed, &parsed).map_err(|wrong| wrong.to_string())?;
        let mut config = Config { number: self.config.number + 1, ..parsed.clone() };
        let mut opened = Vec::new();
        for known in &mut self.addresses {
            known.2 &= config.listeners.iter().any(|listener| listener.address == known.0);
        }
        for listener in &mut config.listeners {
            let number = self.number(&listener.address);
            let (_, actual, is_open) = &mut self.addresses[number];
            if !std::mem::replace(is_open, true) {
                opened.push((number as u16, actual.clone()));
            }
            (listener.number, listener.address) = (number as u16, actual.clone());
        }
        world.trace_note("reload", name);
        (self.config, self.parsed) = (Arc::new(config), parsed);
        for mailbox in self.mailboxes.borrow_mut().iter_mut() {
            let sockets = opened.iter();
            let sockets =
                sockets.map(|(number, address)| (*number, world.listen(&address_of(address))));
            let message = WorkerMessage::Configure {
                config: self.config.clone(),
                sockets: sockets.collect(),
            };
            assert!(mailbox.send(message).is_ok(), "a worker reads its messages");
            mailbox.flush();
        }
        Ok(())
    }

    fn number(&mut self, address: &ListenAddress) -> usize {
        if let Some(number) = self.addresses.iter().position(|known| known.0 == *address) {
            return number;
        }
        self.addresses.push((address.clone(), address.clone(), false));
        self.addresses.len() - 1
    }
}
