//! A program that hands its responses over to `millrace` without a copy. To run it:
//!
//! ```text
//! cargo run -p iolite --example program -- /tmp/program.sock 65536 &
//! millrace boost --program unix:/tmp/program.sock
//! curl http://127.0.0.1:8080/
//! ```
//!
//! The first argument is the path of the socket, the second one the length of the documents in
//! bytes. `/new` makes a document for each request, `/echo` sends the body of the request back,
//! `/variables` lists what the server says about the request, and each other path has the same
//! document.

use std::path::Path;
use std::process::ExitCode;

use iolite::{Aggregate, Error, ProgramListener, ProgramRequest, UnsealedMemory};

/// Makes a document of `length` bytes in memory that nothing can change any more.
fn document(length: usize, first: u8) -> std::result::Result<Aggregate, Error> {
    let mut memory = UnsealedMemory::new(length.max(1))?;
    let bytes = &mut memory.unfilled()[..length];
    bytes.iter_mut().zip(0_usize..).for_each(|(byte, at)| *byte = b'a' + (at % 26) as u8);
    if let [byte, ..] = bytes {
        *byte = first;
    }
    memory.advance(length);
    Ok(Aggregate::from(memory.seal()?.into_slice()?))
}

/// Returns the names and values of all variables, one on each line.
fn variables(request: &ProgramRequest) -> Vec<u8> {
    let lines = request.variables().flat_map(|(name, value)| [name, b"=", value, b"\n"]);
    lines.collect::<Vec<_>>().concat()
}

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn serve(path: &Path, length: usize) -> Result<()> {
    let mut program = ProgramListener::bind(path, 0o666)?;
    let same = document(length, b'a')?;
    let mut number = 0_u8;
    loop {
        let request = program.receive()?;
        number = number.wrapping_add(1);
        let made: Result<Aggregate> = match request.variable(b"PATH_INFO").unwrap_or_default() {
            b"/new" => document(length, b'0' + number % 10).map_err(Into::into),
            b"/echo" => Ok(request.body().clone()),
            b"/variables" => {
                Aggregate::from_bytes(&variables(&request), program.slab()).map_err(Into::into)
            }
            _ => Ok(same.clone()),
        };
        match made {
            Ok(body) => program.respond(&request, b"Content-Type: text/plain\n\n", body)?,
            Err(error) => {
                eprintln!("program: {error}");
                program.respond(&request, b"Status: 500\n\n", Aggregate::new())?;
            }
        }
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [path, rest @ ..] = &arguments[..] else {
        eprintln!("usage: program SOCKET [BYTES]");
        return ExitCode::from(2);
    };
    let length = rest.first().map_or(Ok(65536), |text| text.parse());
    let Ok(length) = length else {
        eprintln!("program: BYTES is no number");
        return ExitCode::from(2);
    };
    match serve(Path::new(path), length) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("program: {error}");
            ExitCode::FAILURE
        }
    }
}
