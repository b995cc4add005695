//! The configuration of the real program: a command line, or an equivalent file if the scenario
//! reloads.

use std::path::{Path, PathBuf};

use millrace_config as config;

use super::process::Process;
use crate::scenario::{Placeholders, Scenario};

/// The configurations of a scenario.
pub(super) struct Configurations {
    /// The commands by name. The name of the initial one is empty.
    commands: Vec<(String, Vec<String>)>,
    file: PathBuf,
}

impl Configurations {
    /// Returns the configurations for a program that listens at `listen`, with a file in `folder`.
    pub(super) fn new(
        scenario: &Scenario,
        names: &Placeholders,
        listen: String,
        folder: &Path,
    ) -> Self {
        let own = [("".to_owned(), scenario.command.clone())];
        let commands = own.iter().chain(&scenario.reloads).map(|(name, command)| {
            let mut words: Vec<String> = command.iter().map(|word| names.fill(word)).collect();
            words.splice(1..1, ["--listen".to_owned(), listen.clone()]);
            (name.clone(), words)
        });
        Self { commands: commands.collect(), file: folder.join("millrace.toml") }
    }

    /// Starts the program. In a scenario without reloads it gets the command line itself.
    pub(super) fn start(&self, program: &Path, engine: &str) -> Result<Process, String> {
        let [(_, words)] = &self.commands[..] else {
            self.write("")?;
            let words = ["run".to_owned(), self.file.display().to_string()];
            return Process::start(program, words.into_iter(), &["--engine", engine]);
        };
        Process::start(program, words.iter().cloned(), &["--engine", engine])
    }

    /// Makes the program read another configuration.
    pub(super) fn reload(&self, process: &mut Process, name: &str) -> Result<(), String> {
        self.write(name)?;
        process.reload()
    }

    /// Writes a configuration to the file. An invalid command makes an invalid file.
    fn write(&self, name: &str) -> Result<(), String> {
        let found = self.commands.iter().find(|(known, _)| known == name);
        let (_, words) = found.ok_or(format!("no configuration is called {name}"))?;
        let text = match config::from_arguments(words) {
            Ok(config) => config::to_toml(&config),
            Err(wrong) => format!("invalid: {wrong}\n"),
        };
        std::fs::write(&self.file, text).map_err(|error| format!("a file: {error}"))
    }
}
