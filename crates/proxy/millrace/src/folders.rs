//! Opens the folders whose files are served. They are opened together with the reading of the
//! configuration, so that their errors are reported with it.

use std::path::Path;
use std::sync::Arc;

use millrace_config::{Config, ConfigError, FolderHandle, FolderRoute, RawConfig, SymlinkRule};
use millrace_files::{Folder, GrantedFolder, Symlinks, WithheldFolder};
use millrace_sys::Errno;

use crate::cgi;

/// Opens the folder of each route in `config` that has one, and makes its path absolute. `raw` is
/// the source of `config`.
///
/// # Errors
/// The first folder that cannot be opened.
pub(crate) fn open(config: &mut Config, raw: &RawConfig) -> Result<(), ConfigError> {
    // A program is never sent as a file.
    let programs: Vec<_> =
        cgi::programs(config).map(|cgi| WithheldFolder::new(&cgi.folder)).collect();
    for (service, of_service) in config.services.iter_mut().enumerate() {
        for (route, of_route) in of_service.routes_mut().iter_mut().enumerate() {
            let folders =
                [("folder", &mut of_route.folder), ("sendfile-path", &mut of_route.sendfile)];
            for (own, folder) in folders {
                let Some(folder) = folder else { continue };
                let handle = open_folder(folder, &programs).map_err(|(option, path, error)| {
                    let place = raw.location_in_route(service, route, option.unwrap_or(own));
                    let error = std::io::Error::from(error);
                    let path = path.display();
                    let problem = format!("cannot open the folder \"{path}\": {error}");
                    ConfigError::rule(place, problem, "a directory that this user may open")
                })?;
                let folder = Arc::make_mut(folder);
                folder.folder = Some(handle);
                // Programs run elsewhere, and workers do not look up their working directory.
                folder.path =
                    std::path::absolute(&folder.path).unwrap_or_else(|_| folder.path.clone());
            }
        }
    }
    Ok(())
}

/// Opens a folder and those into which its links may lead, without what is below `withheld`. An
/// error names the option, if it is not that of the folder, and the path.
fn open_folder<'f>(
    folder: &'f FolderRoute,
    withheld: &[WithheldFolder],
) -> Result<FolderHandle, (Option<&'static str>, &'f Path, Errno)> {
    let allowed = folder.allowed_paths.iter().map(|path| {
        let opened = GrantedFolder::open(path);
        opened.map(Arc::new).map_err(|error| (Some("allow-path"), path.as_path(), error))
    });
    let allowed = allowed.collect::<Result<Vec<_>, _>>()?;
    let symlinks = match folder.symlinks {
        SymlinkRule::None => Symlinks::None,
        SymlinkRule::Inside if allowed.is_empty() => Symlinks::Inside,
        SymlinkRule::Inside => Symlinks::AndInto(allowed),
    };
    let opened = Folder::open(&folder.path, symlinks);
    let opened = opened.map_err(|error| (None, folder.path.as_path(), error))?;
    Ok(FolderHandle(Arc::new(opened.withholding(withheld.to_vec()))))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::fs;
    use std::path::PathBuf;

    use millrace_config::{Command, command, from_raw, parse_toml};
    use millrace_files::OpenMode;

    use super::*;

    fn folder(name: &str) -> PathBuf {
        let name = format!("millrace-folders-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        path
    }

    /// Opens the folders of a configuration.
    fn opened(raw: &RawConfig) -> Result<Config, ConfigError> {
        let mut config = from_raw(raw)?;
        open(&mut config, raw).map(|()| config)
    }

    fn command_line(words: &str) -> RawConfig {
        let words = format!("millrace serve {words}");
        match command(words.split(' ').map(OsString::from)) {
            Ok(Command::Serve(raw)) => raw,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_folder_is_opened_anew() {
        let (path, other) = (folder("all"), folder("other"));
        fs::write(path.join("a"), "a").unwrap();
        fs::write(other.join("b"), "b").unwrap();
        std::os::unix::fs::symlink(other.join("b"), path.join("link")).unwrap();
        let words = |more: &str| command_line(&format!("{}{more}", path.display()));
        let finds = |config: &Config, file: &str| {
            let folder = config.services[0].routes()[0].folder.as_ref().unwrap();
            let handle = folder.folder.as_ref().unwrap();
            handle.0.open(file.as_bytes(), OpenMode::Waiting).map(drop)
        };
        let inside = opened(&words("")).unwrap();
        assert_eq!(finds(&inside, "a"), Ok(()));
        assert_eq!(finds(&inside, "link"), Err(Errno::ACCESS));
        assert_ne!(opened(&words("")).unwrap(), inside, "another handle");
        let into = opened(&words(&format!(" --allow-path {}", other.display()))).unwrap();
        assert_eq!(finds(&into, "link"), Ok(()));
        let none = opened(&words(" --symlinks none")).unwrap();
        assert!(finds(&none, "link").is_err());
        for path in [path, other] {
            fs::remove_dir_all(path).unwrap();
        }
    }

    #[test]
    fn programs_are_no_files() {
        let path = folder("programs");
        fs::create_dir(path.join("cgi")).unwrap();
        fs::write(path.join("cgi/a"), "a").unwrap();
        fs::write(path.join("b"), "b").unwrap();
        std::os::unix::fs::symlink("cgi/a", path.join("link")).unwrap();
        let words = format!("{} --cgi {}/cgi", path.display(), path.display());
        let config = opened(&command_line(&words)).unwrap();
        let files = config.services[0].routes()[1].folder.as_ref().unwrap();
        let open = |file: &str| {
            let handle = files.folder.as_ref().unwrap();
            handle.0.open(file.as_bytes(), OpenMode::Waiting).map(drop)
        };
        assert_eq!(open("b"), Ok(()));
        for file in ["cgi/a", "link", "cgi"] {
            assert_eq!(open(file), Err(Errno::NOENT), "{file}");
        }
        fs::rename(path.join("cgi"), path.join("renamed")).unwrap();
        fs::create_dir(path.join("cgi")).unwrap();
        fs::write(path.join("cgi/a"), "a").unwrap();
        for file in ["renamed/a", "cgi/a", "link"] {
            assert_eq!(open(file), Err(Errno::NOENT), "{file}");
        }
        fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn a_missing_folder_is_named_with_its_option() {
        let path = folder("missing");
        let file = path.join("file");
        fs::write(&file, "").unwrap();
        let refusal = |raw: &RawConfig| opened(raw).unwrap_err().to_string();
        let (path, file) = (path.display(), file.display());
        assert_eq!(
            refusal(&command_line("/no/such")),
            "DIR: cannot open the folder \"/no/such\": No such file or directory (os error 2) \
             (expected: a directory that this user may open)"
        );
        let message = refusal(&command_line(&file.to_string()));
        assert!(message.contains("Not a directory"), "{message}");
        let message = refusal(&command_line(&format!("{path} --allow-path /no/such")));
        assert!(message.starts_with("--allow-path: cannot open the folder \"/no/s"), "{message}");
        let text = format!(
            "[[serve]]\nlisten = '[::1]:1'\nfolder = '/no/such'\n[[serve.route]]\nhost = 'a'\n\
             folder = '{path}'\n"
        );
        let message = refusal(&parse_toml("f", &text, &RawConfig::default()).unwrap());
        assert!(message.starts_with("f:3: folder: cannot open the folder"), "{message}");
        fs::remove_dir_all(path.to_string()).unwrap();
    }
}
