//! From the command line to what it asks for.

use std::ffi::OsString;

use millrace_config::{self as config, Command, ConfigError};

use crate::config_source::ConfigSource;
use crate::failure::Failure;
use crate::{cache_cli, congestion, demo, doctor, preflight, print, supervisor, users};

/// Does what `words` ask for, the first of which is the program's name.
pub(crate) fn run(words: impl IntoIterator<Item = OsString>) -> Result<(), Failure> {
    match config::command(words)? {
        Command::Serve(tables) => {
            let mut config = config::from_raw(&tables)?;
            users::load(&mut config, &tables)?;
            congestion::check(&config, &tables)?;
            preflight::check(&config, &tables)?;
            supervisor::run(config, None, tables.is_upgrade())
        }
        Command::Run { file, over } => {
            let (upgrade, source) = (over.is_upgrade(), ConfigSource { file, over });
            let config = source.read()?;
            preflight::check(&config, &source.over)?;
            supervisor::run(config, Some(source), upgrade)
        }
        Command::Check { file, over } => {
            let source = ConfigSource { file, over };
            let config = source.read()?;
            preflight::check(&config, &source.over)?;
            config::notes(&config).iter().for_each(|note| print::error(note));
            print::output(&config::to_toml(&config))
        }
        Command::Doctor(tables) => doctor::run(&config::process_from_raw(&tables)?),
        Command::Demo => demo::run(),
        Command::Cache(request) => cache_cli::run(&request),
        Command::Reference(name) => reference(&name),
        Command::Print(text) => print::output(&text),
    }
}

fn reference(name: &str) -> Result<(), Failure> {
    let Some(page) = config::page(name) else {
        let names: Vec<_> = config::PAGES.iter().map(|(name, ..)| *name).collect();
        return Err(ConfigError::unknown("reference", "page", name, &names).into());
    };
    print::output(&page)
}
