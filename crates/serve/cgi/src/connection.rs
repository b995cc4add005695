//! The requests of a connection of millrace, one after the other.

use std::os::fd::{AsFd, OwnedFd};

use millrace_fastcgi::{OutputStream, RequestDecoder, RequestPart, write_end};

use crate::environment::{self, ProgramName};
use crate::find;
use crate::link::{Closed, Link};
use crate::programs::{Programs, StartError};
use crate::run::{self, Outcome};

/// Serves the requests of a connected socket, which does not wait, until millrace closes it.
pub(crate) fn serve(socket: OwnedFd, programs: &Programs) -> Result<(), Closed> {
    let mut link = Link::new(socket);
    loop {
        let mut decoder = RequestDecoder::default();
        receive_environment(&mut link, &mut decoder)?;
        respond(&mut link, programs, &mut decoder)?;
        finish(&mut link, &mut decoder)?;
        if !decoder.keeps_connection() {
            return Ok(());
        }
    }
}

/// Receives a request up to the beginning of its body.
fn receive_environment(link: &mut Link, decoder: &mut RequestDecoder) -> Result<(), Closed> {
    let mut consumed = 0;
    while !decoder.has_environment() && !decoder.has_ended() {
        match decoder.next_part(&link.received[consumed..]).map_err(|_| Closed)? {
            RequestPart::Framing(count) => consumed += count,
            RequestPart::Incomplete => {
                link.received.drain(..consumed);
                consumed = 0;
                link.wait(&[], None)?;
            }
            RequestPart::Input(_) | RequestPart::Ended => break,
        }
    }
    link.received.drain(..consumed);
    Ok(())
}

/// Sends the rest of a response, and receives the rest of the body, which no program reads.
fn finish(link: &mut Link, decoder: &mut RequestDecoder) -> Result<(), Closed> {
    loop {
        let mut consumed = 0;
        loop {
            match decoder.next_part(&link.received[consumed..]).map_err(|_| Closed)? {
                RequestPart::Framing(count) => consumed += count,
                RequestPart::Input(count) => {
                    decoder.skip(count);
                    consumed += count;
                }
                RequestPart::Incomplete | RequestPart::Ended => break,
            }
        }
        link.received.drain(..consumed);
        if decoder.has_ended() && link.unsent.is_empty() {
            return Ok(());
        }
        link.wait(&[], None)?;
    }
}

/// Responds to a request whose environment has arrived.
fn respond(
    link: &mut Link,
    programs: &Programs,
    decoder: &mut RequestDecoder,
) -> Result<(), Closed> {
    if decoder.is_aborted() {
        return Ok(());
    }
    let variables = decoder.environment().map_err(|_| Closed)?;
    let name = ProgramName::from_variables(&variables).ok_or(Closed)?;
    let (root, root_path) = programs.folder(name.folder).ok_or(Closed)?;
    let found = match find::find(root, name.path) {
        Ok(found) => found,
        Err(error) => return refuse(link, &StartError::Open(error), name.path),
    };
    let environment = environment::compose(&variables, name.mount, root_path, &found);
    let folder = found.folder.as_ref().map_or(root, |folder| folder.as_fd());
    let path = found.path.to_vec();
    let program = match programs.start(&found, folder, environment) {
        Ok(program) => program,
        Err(error) => return refuse(link, &error, &path),
    };
    match run::run(link, decoder, program, programs.run_time())? {
        Outcome::Complete(status) => {
            link.unsent.extend_from_slice(&write_end(status));
            Ok(())
        }
        Outcome::Cut => Err(Closed),
        Outcome::TimedOut => refuse(link, &StartError::TimedOut, &path),
    }
}

/// Responds with the status of an error, and reports it to the operator if the operator can change
/// something.
fn refuse(link: &mut Link, error: &StartError, path: &[u8]) -> Result<(), Closed> {
    let (status, is_reported) = error.status();
    if is_reported {
        let path = path.escape_ascii();
        link.push(OutputStream::Errors, format!("cannot run {path}: {error}\n").as_bytes());
    }
    let text = format!("Status: {status}\r\nContent-Type: text/plain\r\n\r\n{status} ({error})\n");
    link.push(OutputStream::Output, text.as_bytes());
    link.unsent.extend_from_slice(&write_end(0));
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{Read, Write};
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixStream;
    use std::path::PathBuf;

    use millrace_fastcgi::{
        AuthorizationFor, CGI_FOLDER_VARIABLE, Environment, ResponseDecoder, write_abort,
        write_input_header, write_request,
    };

    use super::*;
    use crate::settings::LauncherSettings;

    /// A served connection, and the folder of its programs.
    struct Peer {
        folder: PathBuf,
        socket: UnixStream,
        served: Option<std::thread::JoinHandle<Result<(), Closed>>>,
    }

    impl Peer {
        fn new(name: &str, programs: &[(&str, &str)], run_ms: u64) -> Self {
            let name = format!("millrace-cgi-{name}-{}", std::process::id());
            let folder = std::env::temp_dir().join(name);
            fs::create_dir(&folder).unwrap();
            for (name, text) in programs {
                let path = folder.join(name);
                fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
                fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            }
            let settings = LauncherSettings {
                parent: 0,
                users: None,
                programs: 1,
                run_ms,
                memory_bytes: 0,
                processes: 0,
                control_group: None,
                folders: vec![folder.clone()],
            };
            let opened = vec![millrace_sys::open_folder(&folder).unwrap()];
            let programs = Programs::new(settings, opened, Vec::new(), None);
            let (socket, own) = UnixStream::pair().unwrap();
            own.set_nonblocking(true).unwrap();
            let serve = move || serve(own.into(), &programs);
            Self { folder, socket, served: Some(std::thread::spawn(serve)) }
        }

        fn send(&mut self, path: &str, body: &[u8]) {
            let mut environment = Environment::new(AuthorizationFor::NoProgram);
            environment.set(CGI_FOLDER_VARIABLE.as_bytes(), b"0");
            environment.set(b"SCRIPT_NAME", b"/c");
            environment.set(b"PATH_INFO", path.as_bytes());
            let mut out = Vec::new();
            write_request(&mut out, &environment);
            out.extend_from_slice(&write_input_header(body.len()));
            out.extend_from_slice(body);
            if !body.is_empty() {
                out.extend_from_slice(&write_input_header(0));
            }
            self.socket.write_all(&out).unwrap();
        }

        /// Returns output and errors of a response; `None` if the connection ends before.
        fn response(&mut self) -> Option<(String, String)> {
            let (mut decoder, mut output) = (ResponseDecoder::default(), Vec::new());
            let mut bytes = [0; 4096];
            while !decoder.is_finished() {
                let count = self.socket.read(&mut bytes).unwrap_or(0);
                if count == 0 {
                    return None;
                }
                let progress = decoder.decode(&mut bytes[..count]).unwrap();
                output.extend_from_slice(&bytes[progress.payload]);
            }
            let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
            Some((text(output), text(decoder.take_errors())))
        }
    }

    impl Drop for Peer {
        fn drop(&mut self) {
            self.socket.shutdown(std::net::Shutdown::Both).unwrap();
            let _ = self.served.take().map(std::thread::JoinHandle::join);
            fs::remove_dir_all(&self.folder).unwrap();
        }
    }

    #[test]
    fn requests_follow_each_other_on_a_connection() {
        let echo = "printf \"\\n$SCRIPT_NAME$PATH_INFO \"; cat; echo wrong >&2";
        let mut peer = Peer::new("serve", &[("echo", echo), ("deaf", "printf '\\nok'")], 60_000);
        for body in [&b"some body"[..], b""] {
            peer.send("/echo/x", body);
            let expected = format!("\n/c/echo/x {}", std::str::from_utf8(body).unwrap());
            assert_eq!(peer.response(), Some((expected, "wrong\n".to_owned())));
            peer.send("/deaf", &[b'x'; 60_000]);
            assert_eq!(peer.response(), Some(("\nok".to_owned(), String::new())));
            peer.send("/none", body);
            let (output, errors) = peer.response().unwrap();
            assert!(output.starts_with("Status: 404 Not Found\r\n") && errors.is_empty());
        }
    }

    #[test]
    fn a_cut_response_has_no_end() {
        let programs = [
            ("killed", "printf '\\nbegun'; sleep 0.1; kill -9 $$"),
            ("silent", "kill -9 $$"),
            ("late", "sleep 600"),
        ];
        let mut peer = Peer::new("cut", &programs, 300);
        peer.send("/silent", b"");
        assert_eq!(peer.response(), Some((String::new(), String::new())));
        peer.send("/late", b"");
        let (output, errors) = peer.response().unwrap();
        assert!(output.starts_with("Status: 504 Gateway Timeout\r\n"), "{output}");
        assert!(errors.contains("cannot run /late: "), "{errors}");
        peer.send("/killed", b"");
        assert_eq!(peer.response(), None);
    }

    #[test]
    fn an_aborted_request_ends_its_program() {
        let mut peer = Peer::new("abort", &[("wait", "printf '\\nbegun'; sleep 600")], 60_000);
        peer.send("/wait", b"");
        let mut header = [0; 8 + 6];
        peer.socket.read_exact(&mut header).unwrap();
        assert_eq!(&header[8..], b"\nbegun");
        peer.socket.write_all(&write_abort()).unwrap();
        assert_eq!(peer.response(), None);
    }
}
