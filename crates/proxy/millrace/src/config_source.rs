//! The source of the configuration, which a reload reads again.

use std::borrow::Cow;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

use millrace_config::{self as config, Config, ConfigError, FILE_BYTES_MAX, RawConfig};

use crate::file_stamps::FileStamps;
use crate::threads::lock;
use crate::{certificates, congestion, folders, preflight, users};

/// The source of a configuration, and the files that the configuration in force named.
pub(crate) struct ConfigSource {
    place: Place,
    /// The certificates as they were before they were read for the configuration in force, or were
    /// themselves refused. A reload that is refused for another reason leaves them as they are: the
    /// next check finds a replaced certificate again.
    files: Mutex<FileStamps>,
}

/// Where a configuration is.
enum Place {
    /// A configuration file.
    File {
        /// The path of the file.
        file: PathBuf,
        /// Options of the command line, which take precedence.
        overrides: RawConfig,
    },
    /// The options of a command line. A reload reads the files anew that they name.
    CommandLine(RawConfig),
}

impl ConfigSource {
    /// Returns the source of a configuration file. `overrides` are options of the command line,
    /// which take precedence.
    pub(crate) fn of_file(file: PathBuf, overrides: RawConfig) -> Self {
        Self { place: Place::File { file, overrides }, files: Mutex::default() }
    }

    /// Returns the source of a configuration by options of the command line.
    pub(crate) fn of_command_line(options: RawConfig) -> Self {
        Self { place: Place::CommandLine(options), files: Mutex::default() }
    }

    /// Returns the stamps by which changed certificates are found, locked. A file that changes
    /// during a reading has changed afterwards.
    pub(crate) fn files(&self) -> MutexGuard<'_, FileStamps> {
        lock(&self.files)
    }

    /// Returns the path of the configuration, if it is a file.
    pub(crate) fn file(&self) -> Option<&Path> {
        match &self.place {
            Place::File { file, .. } => Some(file),
            Place::CommandLine(_) => None,
        }
    }

    /// Returns the options of the command line.
    pub(crate) fn options(&self) -> &RawConfig {
        match &self.place {
            Place::File { overrides: options, .. } | Place::CommandLine(options) => options,
        }
    }

    /// Returns the name for messages.
    pub(crate) fn name(&self) -> String {
        self.file().map_or_else(|| "command line".to_owned(), |file| file.display().to_string())
    }

    /// Reads the configuration for a reload. Unlike [`ConfigSource::read`] it refuses a pipe, whose
    /// writer it would have to wait for. Returns also the stamps of the files, to store in
    /// [`ConfigSource::files`] once the configuration is in force.
    ///
    /// # Errors
    /// Those of [`ConfigSource::read`]; a path that is not a regular file.
    pub(crate) fn read_again(&self) -> Result<(Config, FileStamps), ConfigError> {
        match self.file().map(fs::metadata) {
            Some(Ok(found)) if !found.is_file() => Err(self.unreadable("is not a regular file")),
            _ => {
                let (config, files) = self.load()?;
                preflight::check_folders(&config, self.options())?;
                Ok((config, files))
            }
        }
    }

    fn unreadable(&self, wrong: impl ToString) -> ConfigError {
        ConfigError::rule(self.name(), wrong.to_string(), "a readable file")
    }

    /// Builds the configuration. Files that it names are not read.
    ///
    /// # Errors
    /// The first error, on one line.
    pub(crate) fn parse(&self) -> Result<Config, ConfigError> {
        self.read_raw().and_then(|raw| config::from_raw(&raw))
    }

    /// Builds the configuration for a start, and reads the files that it names.
    ///
    /// # Errors
    /// The first error, on one line.
    pub(crate) fn read(&self) -> Result<Config, ConfigError> {
        let (config, files) = self.load()?;
        *self.files() = files;
        Ok(config)
    }

    fn read_raw(&self) -> Result<Cow<'_, RawConfig>, ConfigError> {
        match &self.place {
            Place::File { file, overrides } => self.read_file(file, overrides).map(Cow::Owned),
            Place::CommandLine(raw) => Ok(Cow::Borrowed(raw)),
        }
    }

    /// Reads and parses the file.
    fn read_file(&self, file: &Path, overrides: &RawConfig) -> Result<RawConfig, ConfigError> {
        let mut bytes = Vec::new();
        // Reading one byte more than allowed detects a file that is too long, even an endless one.
        fs::File::open(file)
            .and_then(|file| file.take(FILE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes))
            .map_err(|error| self.unreadable(error))?;
        let text = String::from_utf8(bytes).map_err(|_| self.unreadable("is not UTF-8"))?;
        config::parse_toml(&self.name(), &text, overrides)
    }

    /// Builds a configuration, and reads the files that it names.
    fn load(&self) -> Result<(Config, FileStamps), ConfigError> {
        let raw = &self.read_raw()?;
        let mut config = config::from_raw(raw)?;
        let files = FileStamps::of(&config);
        users::load(&mut config, raw)?;
        folders::open(&mut config, raw)?;
        if let Err(error) = certificates::load(&mut config, raw) {
            self.files().set_refused(files);
            return Err(error);
        }
        congestion::check(&config, raw)?;
        Ok((config, files))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_config::Command;
    use std::ffi::OsString;

    #[test]
    fn refused_certificates_are_found_when_they_change() {
        let path = std::env::temp_dir().join(format!("millrace-source-{}", std::process::id()));
        fs::write(&path, "no certificate").unwrap();
        let file = path.display();
        let words = format!(
            "millrace boost --origin=http://a --listen=tls://[::1]:1 --certificate={file} --key={file}"
        );
        let words = words.split(' ').map(OsString::from);
        let Ok(Command::Serve(options)) = config::command(words) else { panic!() };
        let source = ConfigSource::of_command_line(options);
        assert!(source.read().is_err());
        assert!(!source.files().have_changed());
        fs::write(&path, "another text").unwrap();
        assert!(source.files().have_changed());
        fs::remove_file(&path).unwrap();
        assert!(source.read().is_err() && !source.files().have_changed());
        fs::write(&path, "no certificate").unwrap();
        assert!(source.files().have_changed());
        assert!(source.read().is_err());
        fs::remove_file(&path).unwrap();
        source.files().forget_unreachable();
        assert!(!source.files().have_changed());
        fs::write(&path, "another text").unwrap();
        source.files().forget_unreachable();
        assert!(source.files().have_changed());
        fs::remove_file(&path).unwrap();
    }
}
