//! From the command line to what it asks for.

use std::ffi::OsString;

use millrace_config::{self as config, Command, ConfigError};

use crate::failure::Failure;
use crate::source::Source;
use crate::{ask, congestion, demo, doctor, host, say, supervisor, users};

/// Does what `words` ask for, the first of which is the program's name.
pub(crate) fn run(words: impl IntoIterator<Item = OsString>) -> Result<(), Failure> {
    match config::command(words)? {
        Command::Serve(tables) => {
            let mut config = config::from_tables(&tables)?;
            users::load(&mut config, &tables)?;
            congestion::check(&config, &tables)?;
            host::check(&config, &tables)?;
            supervisor::run(config, None, tables.is_upgrade())
        }
        Command::Run { file, over } => {
            let (upgrade, source) = (over.is_upgrade(), Source { file, over });
            let config = source.read()?;
            host::check(&config, &source.over)?;
            supervisor::run(config, Some(source), upgrade)
        }
        Command::Check { file, over } => {
            let source = Source { file, over };
            let config = source.read()?;
            host::check(&config, &source.over)?;
            config::notes(&config).iter().for_each(|note| say::error(note));
            say::output(&config::to_toml(&config))
        }
        Command::Doctor(tables) => doctor::run(&config::process_from_tables(&tables)?),
        Command::Demo => demo::run(),
        Command::Cache(asking) => ask::run(&asking),
        Command::Reference(name) => reference(&name),
        Command::Print(text) => say::output(&text),
    }
}

fn reference(name: &str) -> Result<(), Failure> {
    let Some(page) = config::page(name) else {
        let names: Vec<_> = config::PAGES.iter().map(|(name, ..)| *name).collect();
        return Err(Failure::Config(ConfigError::Unknown {
            place: "reference".to_owned(),
            found: name.to_owned(),
            nearest: None,
            allowed: names.join(", "),
        }));
    };
    say::output(&page)
}
