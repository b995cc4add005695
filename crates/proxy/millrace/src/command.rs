//! Runs the command that the command line names.

use std::ffi::OsString;

use millrace_config::{self as config, Command, Config, ConfigError};

use crate::config_source::ConfigSource;
use crate::program_error::ProgramError;
use crate::{
    acme, cache_cli, certificates, console, demo, doctor, metrics, preflight, privileges,
    supervisor,
};

/// Runs the command line `words`. The first word is the name of the program.
///
/// # Errors
/// A wrong option or file, or the error of the command.
pub(crate) fn run(words: impl IntoIterator<Item = OsString>) -> Result<(), ProgramError> {
    match config::command(words)? {
        Command::Serve(raw) => serve(ConfigSource::of_command_line(raw)),
        Command::Run { file, overrides } => serve(ConfigSource::of_file(file, overrides)),
        Command::Check { file, overrides, has_test_orders } => {
            let source = ConfigSource::of_file(file.clone(), overrides);
            let config = source.read()?;
            preflight::check(&config, source.options())?;
            privileges::check_state_folders(&config, &file)?;
            if has_test_orders {
                return acme::check::run(&config);
            }
            let file_notes = privileges::file_notes(&config, &file);
            let notes = [config::notes(&config), certificates::notes(&config), file_notes].concat();
            notes.iter().for_each(|note| console::log(note));
            certificates::validity(&config).iter().for_each(|line| console::log(line));
            let settings = config::to_toml(&config);
            console::write_result(&format!("{settings}\n# The configuration is valid.\n"))
        }
        Command::Doctor { file: Some(file), overrides } => {
            doctor::run(&ConfigSource::of_file(file, overrides).read()?)
        }
        Command::Doctor { file: None, overrides } => {
            doctor::run(&config::process_from_raw(&overrides)?)
        }
        Command::Demo => demo::run(),
        Command::Cache(request) => cache_cli::run(&request),
        Command::Reference(name) => reference(&name),
        Command::Print(text) => console::write_result(&text),
    }
}

/// Returns the present configuration of a command line that serves. Files that it names are not
/// read.
///
/// # Errors
/// A wrong option or file; another command.
pub(crate) fn parse_config(
    words: impl IntoIterator<Item = OsString>,
) -> Result<Config, ProgramError> {
    let source = match config::command(words)? {
        Command::Serve(raw) => ConfigSource::of_command_line(raw),
        Command::Run { file, overrides } => ConfigSource::of_file(file, overrides),
        _ => return Err(ProgramError::System("the command does not serve".to_owned())),
    };
    Ok(source.parse()?)
}

/// Serves by a configuration.
fn serve(source: ConfigSource) -> Result<(), ProgramError> {
    let config = source.read()?;
    preflight::check(&config, source.options())?;
    let upgrade = source.options().is_upgrade();
    supervisor::run(config, source, upgrade)
}

/// Prints a generated page. `metrics` comes from this crate, the others from the options.
fn reference(name: &str) -> Result<(), ProgramError> {
    if name == "metrics" {
        return console::write_result(&metrics::reference_page());
    }
    let Some(page) = config::page(name) else {
        let names = config::PAGES.iter().map(|(name, ..)| *name).chain(["metrics"]);
        return Err(
            ConfigError::unknown("reference", "page", name, &names.collect::<Vec<_>>()).into()
        );
    };
    console::write_result(&page)
}
