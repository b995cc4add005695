//! A served folder with files that must not be sent, and targets that try to reach them.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::corpus::random::Random;
use crate::real;

/// The content of files that may be sent.
pub const PUBLIC: &str = "the public content";
/// The contents of files that may not be sent: outside the folder, hidden, and of a program.
pub const WITHHELD: [&str; 3] = ["content from outside", "a hidden content", "a program's source"];

const PATIENCE: Duration = Duration::from_secs(60);

/// A folder in the folder for temporary files, which is removed when this is dropped.
#[derive(Debug)]
pub struct Site(PathBuf);

impl Site {
    /// Creates the folder. Its name begins with `name`.
    ///
    /// # Panics
    /// Panics if the files cannot be written.
    pub fn new(name: &str) -> Self {
        let root = std::env::temp_dir().join(format!("millrace-{name}-{}", std::process::id()));
        let site = Self(root);
        site.write().expect("files can be written in the folder for temporary files");
        site
    }

    fn write(&self) -> io::Result<()> {
        let [outside, hidden, source] = WITHHELD;
        for (path, content) in [
            ("secret.txt", outside),
            ("site-2/secret.txt", outside),
            ("site/a.txt", PUBLIC),
            ("site/dir/b.txt", PUBLIC),
            ("site/.env", hidden),
            ("site/.git/config", hidden),
            ("site/dir/x.key", hidden),
            ("site/dir/app.php", source),
            ("site/app.php", source),
            ("site/app.php~", source),
            ("site/tool.cgi", source),
        ] {
            let path = self.0.join(path);
            path.parent().map_or(Ok(()), fs::create_dir_all)?;
            fs::write(path, content)?;
        }
        symlink("../secret.txt", self.0.join("site/link.txt"))?;
        symlink("..", self.0.join("site/up"))?;
        symlink("app.php", self.0.join("site/page.html"))
    }

    /// Returns the folder that is served.
    pub fn served(&self) -> PathBuf {
        self.0.join("site")
    }

    /// Returns the folder above it, of which everything may be seen in a test of the test.
    pub fn above(&self) -> &Path {
        &self.0
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The running program. It is killed when this is dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    child: Child,
}

impl Server {
    /// Runs the program with these arguments, until it prints its address.
    ///
    /// # Panics
    /// Panics if the program is missing, or prints no address.
    pub fn start(arguments: &[&str]) -> Self {
        let mut command = Command::new(real::program().unwrap_or_else(|error| panic!("{error}")));
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let child = command.spawn().expect("the program can be started");
        let mut server = Self { address: SocketAddr::from(([127, 0, 0, 1], 0)), child };
        let lines = BufReader::new(server.child.stderr.take().expect("standard error is piped"));
        let (send, receive) = mpsc::channel();
        // Reads to the end, so that the program never waits for this pipe.
        thread::spawn(move || {
            for line in lines.lines().map_while(Result::ok) {
                let _ = send.send(line);
            }
        });
        let mut printed = Vec::new();
        while let Ok(line) = receive.recv_timeout(PATIENCE) {
            if let Some(address) = line.strip_prefix("millrace: listening on ") {
                server.address = address.parse().expect("an address and a port");
                return server;
            }
            printed.push(line);
        }
        panic!("the program did not print its address; it printed: {printed:?}");
    }

    /// Opens a connection.
    ///
    /// # Panics
    /// Panics if the program does not accept it.
    pub fn connect(&self) -> Connection {
        let stream = TcpStream::connect(self.address).expect("the program listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time above 0");
        Connection { stream, received: Vec::new() }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A connection with the server.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    received: Vec<u8>,
}

/// A response.
#[derive(Debug)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// The header and the body.
    pub bytes: Vec<u8>,
    /// Whether the connection ends after it.
    pub closes: bool,
}

impl Connection {
    /// Requests a target, and reads the response.
    ///
    /// # Errors
    /// If the connection ends in the middle of it.
    pub fn get(&mut self, target: &[u8]) -> io::Result<Response> {
        let request = [b"GET ", target, b" HTTP/1.1\r\nHost: a.test\r\n\r\n"].concat();
        self.stream.write_all(&request)?;
        let head = loop {
            let end = self.received.windows(4).position(|four| four == b"\r\n\r\n");
            match end {
                Some(end) => break end + 4,
                None => self.read()?,
            }
        };
        let text = String::from_utf8_lossy(&self.received[..head]).to_ascii_lowercase();
        let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
        let length = field("content-length:").and_then(|value| value.trim().parse::<usize>().ok());
        let length = length.ok_or(io::ErrorKind::InvalidData)?;
        while self.received.len() < head + length {
            self.read()?;
        }
        let status = text.split(' ').nth(1).and_then(|status| status.parse().ok());
        Ok(Response {
            status: status.ok_or(io::ErrorKind::InvalidData)?,
            closes: field("connection:").is_some_and(|value| value.contains("close")),
            bytes: self.received.drain(..head + length).collect(),
        })
    }

    fn read(&mut self) -> io::Result<()> {
        let mut bytes = [0; 4096];
        match self.stream.read(&mut bytes)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            count => {
                self.received.extend_from_slice(&bytes[..count]);
                Ok(())
            }
        }
    }
}

/// The files that targets try to reach.
const GOALS: [&str; 14] = [
    "a.txt",
    "dir/b.txt",
    "../secret.txt",
    "../site-2/secret.txt",
    "up/secret.txt",
    "link.txt",
    ".env",
    ".git/config",
    "dir/x.key",
    "app.php",
    "app.php~",
    "dir/app.php",
    "tool.cgi",
    "page.html",
];

/// Returns a target, in most cases in a form that a server might read as another path than the one
/// that it has checked.
pub fn target(random: &mut Random) -> Vec<u8> {
    let mut path = String::from("/");
    for _ in 0..random.below(3) {
        path.push_str(
            random.choose(&["", "dir/", "dir/../", "./", "/", "none/../", "..;/", "a.txt/"]),
        );
    }
    path.push_str(random.choose(&GOALS));
    if random.below(3) == 0 {
        let endings = [
            "/", "/.", "/x.txt", "/x.php", ".", " ", "%00", "%00.txt", "%20", "::$DATA", ";a.txt",
            "?a", "#a", "%23", "%3f", "~", ".bak", "%0a", "/..", "/../", "\\", "%5c", "*",
        ];
        path.push_str(random.choose(&endings));
    }
    let path: String = path.chars().map(|char| encoded(char, random)).collect();
    match random.below(12) {
        0 => format!("http://a.test{path}").into_bytes(),
        1 => path.to_ascii_uppercase().into_bytes(),
        2 => {
            let mut bytes = path.into_bytes();
            let at = random.below(bytes.len());
            // A line end would begin another request.
            bytes[at] = random.below(256) as u8;
            bytes[at] = if b"\r\n".contains(&bytes[at]) { b'_' } else { bytes[at] };
            bytes
        }
        _ => path.into_bytes(),
    }
}

/// Returns a character, rarely in another form.
fn encoded(char: char, random: &mut Random) -> String {
    if random.below(8) > 0 {
        return char.to_string();
    }
    let forms: &[&str] = match char {
        '/' => &["%2f", "%2F", "\\", "%5c", "//", "/./", "%252f", "%c0%af", "/;/", "/x/../"],
        '.' => &["%2e", "%2E", "%252e", "%c0%ae", "%u002e", "..", "./."],
        _ if char.is_ascii_alphanumeric() => return format!("%{:02x}", char as u32),
        _ => return char.to_string(),
    };
    random.choose(forms).to_owned()
}
