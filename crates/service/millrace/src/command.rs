//! From the command line to what it asks for.

use std::ffi::OsString;
use std::io::Read;
use std::path::Path;

use millrace_proxy::config::{self, Command, Config, ConfigError, FILE_BYTES_MAX, Tables};

use crate::failure::Failure;
use crate::{congestion, demo, doctor, say, supervisor};

/// Does what `words` ask for, the first of which is the program's name.
pub(crate) fn run(words: impl IntoIterator<Item = OsString>) -> Result<(), Failure> {
    match config::command(words)? {
        Command::Serve(tables) => {
            let config = config::from_tables(&tables)?;
            congestion::check(&config, |option| format!("--{option}"))?;
            supervisor::run(config)
        }
        Command::Run { file, over } => supervisor::run(read(&file, &over)?),
        Command::Check { file, over } => {
            say::output(&config::to_toml(&read(&file, &over)?));
            Ok(())
        }
        Command::Doctor(tables) => doctor::run(&config::process_from_tables(&tables)?),
        Command::Demo => demo::run(),
        Command::Reference(name) => reference(&name),
        Command::Print(text) => {
            say::output(&text);
            Ok(())
        }
    }
}

/// Reads a file and what it means.
fn read(file: &Path, over: &Tables) -> Result<Config, Failure> {
    let name = file.display().to_string();
    let unreadable = |wrong: String| ConfigError::Rule {
        place: name.clone(),
        wrong,
        allowed: "a file that can be read".to_owned(),
    };
    let mut bytes = Vec::new();
    // One byte more than allowed is enough to know that a file is too long; it may be endless.
    std::fs::File::open(file)
        .and_then(|file| file.take(FILE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes))
        .map_err(|error| unreadable(error.to_string()))?;
    let text = String::from_utf8(bytes).map_err(|_| unreadable("is not UTF-8".to_owned()))?;
    let config = config::from_named_toml(&name, &text, over)?;
    congestion::check(&config, |option| format!("{name}: {option}"))?;
    Ok(config)
}

fn reference(name: &str) -> Result<(), Failure> {
    let Some(page) = config::page(name) else {
        let names: Vec<_> = config::PAGES.iter().map(|(name, _)| *name).collect();
        return Err(Failure::Config(ConfigError::Unknown {
            place: "reference".to_owned(),
            found: name.to_owned(),
            nearest: None,
            allowed: names.join(", "),
        }));
    };
    say::output(&page);
    Ok(())
}
