//! Where the configuration came from, and may be read again.

use std::fs;
use std::io::Read;
use std::path::PathBuf;

use millrace_config::{self as config, Config, ConfigError, FILE_BYTES_MAX, RawConfig};

use crate::{congestion, preflight, users};

/// A file, with the options of the process that a command line puts before its own.
pub(crate) struct ConfigSource {
    /// The file.
    pub(crate) file: PathBuf,
    /// What comes before its own options.
    pub(crate) over: RawConfig,
}

impl ConfigSource {
    /// What messages call the file.
    pub(crate) fn name(&self) -> String {
        self.file.display().to_string()
    }

    /// As [`ConfigSource::read`], for a process that serves: it does not wait for the writer of a
    /// pipe, as a first start may.
    ///
    /// # Errors
    /// As [`ConfigSource::read`], and what is no file.
    pub(crate) fn read_again(&self) -> Result<Config, ConfigError> {
        match fs::metadata(&self.file) {
            Ok(found) if !found.is_file() => Err(self.unreadable("is no file")),
            _ => {
                let config = self.read()?;
                preflight::check_folders(&config, &self.over)?;
                Ok(config)
            }
        }
    }

    fn unreadable(&self, wrong: impl ToString) -> ConfigError {
        ConfigError::rule(self.name(), wrong.to_string(), "a file that can be read")
    }

    /// Reads the file and what it means.
    ///
    /// # Errors
    /// The first thing that is wrong, on one line.
    pub(crate) fn read(&self) -> Result<Config, ConfigError> {
        let name = self.name();
        let mut bytes = Vec::new();
        // One byte more than allowed is enough to know that a file is too long; it may be endless.
        fs::File::open(&self.file)
            .and_then(|file| file.take(FILE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes))
            .map_err(|error| self.unreadable(error))?;
        let text = String::from_utf8(bytes).map_err(|_| self.unreadable("is not UTF-8"))?;
        let tables = config::parse_toml(&name, &text, &self.over)?;
        let mut config = config::from_raw(&tables)?;
        users::load(&mut config, &tables)?;
        congestion::check(&config, &tables)?;
        Ok(config)
    }
}
