//! Parses a scenario, line by line.

use super::{
    Action, Check, Client, End, EntryKind, Expected, ExpectedStart, FolderEntry, FolderPlan,
    Listen, MessagePart, Origin, OriginKind, Piece, Scenario, Script, Step,
};

/// The item that the next steps belong to.
enum ParserContext {
    Nowhere,
    Folder,
    Origin,
    Accept,
    Each,
    Any,
    Client,
}

pub(super) fn scenario(name: &str, text: &str) -> Result<Scenario, String> {
    let mut scenario = Scenario {
        name: name.to_owned(),
        command: Vec::new(),
        reloads: Vec::new(),
        sockets: Vec::new(),
        listen: Listen::Tcp("127.0.0.1:0".to_owned()),
        real: true,
        simulated: true,
        hostile: true,
        secured: true,
        names: Vec::new(),
        descriptors: None,
        mailboxes: None,
        folders: Vec::new(),
        origins: Vec::new(),
        clients: Vec::new(),
    };
    let mut context = ParserContext::Nowhere;
    for (number, line) in joined_lines(text) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let done = if line.starts_with(' ') {
            inner(&mut scenario, &mut context, number, line.trim())
        } else {
            outer(&mut scenario, &mut context, &words)
        };
        done.map_err(|wrong| format!("line {number}: {wrong}"))?;
    }
    scenario.clients = scenario.clients.into_iter().flat_map(Client::each).collect();
    if scenario.command.is_empty() || scenario.clients.is_empty() {
        return Err("a scenario needs a proxy and at least one client".to_owned());
    }
    Ok(scenario)
}

/// The beginnings of a piece. A line with one of them continues the line above.
const PIECES: [&str; 4] = ["\"", "fill ", "pattern ", "chunk "];

/// Returns lines with their numbers, without comments and empty lines, and with continuations
/// joined.
fn joined_lines(text: &str) -> Vec<(usize, String)> {
    let mut lines: Vec<(usize, String)> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let trimmed = line.trim();
        match lines.last_mut() {
            _ if trimmed.is_empty() || trimmed.starts_with('#') => {}
            Some((_, last)) if PIECES.iter().any(|word| trimmed.starts_with(word)) => {
                last.push(' ');
                last.push_str(trimmed);
            }
            _ => lines.push((index + 1, line.to_owned())),
        }
    }
    lines
}

fn outer(
    scenario: &mut Scenario,
    context: &mut ParserContext,
    words: &[&str],
) -> Result<(), String> {
    match words {
        ["proxy", command @ ..] => {
            scenario.command = command.iter().map(|word| (*word).to_owned()).collect();
        }
        ["reload", name, command @ ..] => {
            let command = command.iter().map(|word| (*word).to_owned()).collect();
            scenario.reloads.push(((*name).to_owned(), command));
        }
        ["socket", name] => scenario.sockets.push((*name).to_owned()),
        ["listen", "unix"] => scenario.listen = Listen::Unix,
        ["listen", address] => scenario.listen = Listen::Tcp((*address).to_owned()),
        ["only", "real"] => scenario.simulated = false,
        ["only", "simulated"] => scenario.real = false,
        ["only", "plain"] => scenario.secured = false,
        ["only", "working"] => scenario.hostile = false,
        ["name", name, address] => {
            let address = address.parse().map_err(|_| format!("`{address}` is not an address"))?;
            scenario.names.push(((*name).to_owned(), address));
        }
        ["origin", name, kind @ ..] => {
            scenario.origins.push(origin(name, kind)?);
            *context = ParserContext::Origin;
        }
        ["folder", name] => {
            scenario.folders.push(FolderPlan { name: (*name).to_owned(), entries: Vec::new() });
            *context = ParserContext::Folder;
        }
        ["descriptors", count] => descriptors(scenario, count, count)?,
        ["descriptors", count, "assumed", assumed] => descriptors(scenario, count, assumed)?,
        ["mailboxes", count] => {
            scenario.mailboxes = Some(number(count)?);
            scenario.real = false;
        }
        ["client", name, "times", count] => {
            let count = number(count)?;
            let (after, when) = (Vec::new(), Vec::new());
            let (name, script) = ((*name).to_owned(), Script::default());
            let client = Client { name, count, at: None, after, when, script };
            scenario.clients.push(client);
            *context = ParserContext::Client;
        }
        ["client", name, after @ ..] => {
            scenario.clients.push(client(name, after)?);
            *context = ParserContext::Client;
        }
        _ => return Err(format!("unknown line `{}`", words.join(" "))),
    }
    Ok(())
}

/// Parses `origin NAME KIND`.
fn origin(name: &str, kind: &[&str]) -> Result<Origin, String> {
    let kind = match kind {
        [] | ["tcp"] => OriginKind::Tcp,
        ["tcp6"] => OriginKind::Tcp6,
        ["unix"] => OriginKind::Unix,
        ["refusing"] => OriginKind::Refusing,
        _ => return Err("an origin is tcp, tcp6, unix or refusing".to_owned()),
    };
    let name = name.to_owned();
    Ok(Origin { name, kind, scripts: Vec::new(), each: None, any: Vec::new() })
}

/// Parses `client NAME`, then `at SOCKET`, then `after CLIENT...` or `when SIGNAL...`.
fn client(name: &str, after: &[&str]) -> Result<Client, String> {
    let (at, after) = match after {
        ["at", socket, after @ ..] => (Some((*socket).to_owned()), after),
        after => (None, after),
    };
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let (after, when) = match after {
        [] => (Vec::new(), Vec::new()),
        ["after", names @ ..] => (owned(names), Vec::new()),
        ["when", names @ ..] => (Vec::new(), owned(names)),
        _ => return Err("expected `after CLIENT...` or `when SIGNAL...`".to_owned()),
    };
    let name = name.to_owned();
    Ok(Client { name, count: 1, at, after, when, script: Script::default() })
}

fn inner(
    scenario: &mut Scenario,
    context: &mut ParserContext,
    line: usize,
    text: &str,
) -> Result<(), String> {
    if let (ParserContext::Folder, Some(folder)) = (&*context, scenario.folders.last_mut()) {
        folder.entries.push(entry(text)?);
        return Ok(());
    }
    let origin = scenario.origins.last_mut();
    match (text, &*context, origin) {
        ("accept", ParserContext::Origin | ParserContext::Accept, Some(origin)) => {
            origin.scripts.push(Script::default());
            *context = ParserContext::Accept;
            return Ok(());
        }
        (
            "accept any",
            ParserContext::Origin | ParserContext::Accept | ParserContext::Any,
            Some(origin),
        ) => {
            origin.any.push(Script::default());
            *context = ParserContext::Any;
            return Ok(());
        }
        ("accept each", ParserContext::Origin | ParserContext::Accept, Some(origin)) => {
            origin.each = Some(Script::default());
            *context = ParserContext::Each;
            return Ok(());
        }
        _ => {}
    }
    let script = match context {
        ParserContext::Accept => scenario.origins.last_mut().and_then(|it| it.scripts.last_mut()),
        ParserContext::Each => scenario.origins.last_mut().and_then(|it| it.each.as_mut()),
        ParserContext::Any => scenario.origins.last_mut().and_then(|it| it.any.last_mut()),
        ParserContext::Client => scenario.clients.last_mut().map(|it| &mut it.script),
        ParserContext::Nowhere | ParserContext::Folder | ParserContext::Origin => None,
    };
    let script = script.ok_or("a step needs a client, or an `accept`, above it")?;
    if let Some(Step { action: Action::Message(expected), .. }) = script.steps.last_mut()
        && check(expected, text)?
    {
        return Ok(());
    }
    script.steps.push(Step { line, action: action(text)? });
    Ok(())
}

/// Parses `file PATH PIECES` or `link PATH TARGET`.
fn entry(text: &str) -> Result<FolderEntry, String> {
    let mut words = text.splitn(3, ' ');
    let (Some(word), Some(path), Some(rest)) = (words.next(), words.next(), words.next()) else {
        return Err("expected `file PATH PIECES` or `link PATH TARGET`".to_owned());
    };
    let kind = match word {
        "file" => EntryKind::File(pieces(rest)?),
        "link" => EntryKind::Link(rest.to_owned()),
        _ => return Err(format!("unknown entry of a folder `{text}`")),
    };
    Ok(FolderEntry { path: path.to_owned(), kind })
}

/// Parses `FOLDER PATH PIECES`.
fn write(text: &str, is_in_place: bool) -> Result<Action, String> {
    let mut words = text.splitn(3, ' ').map(str::to_owned);
    let (Some(folder), Some(path), Some(rest)) = (words.next(), words.next(), words.next()) else {
        return Err("expected a folder, a path and pieces".to_owned());
    };
    Ok(Action::Write { folder, path, pieces: pieces(&rest)?, is_in_place })
}

/// Parses a line below an expected message. Returns false if the line is a step of its own.
fn check(expected: &mut Expected, text: &str) -> Result<bool, String> {
    let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
    let pair = || match rest.split_once(':') {
        Some((name, value)) => Ok((name.to_owned(), value.trim().to_owned())),
        None => Err("a field needs a colon".to_owned()),
    };
    let check = match word {
        "field" => pair().map(|(name, value)| Check::Field(name, value))?,
        "trailer" => pair().map(|(name, value)| Check::Trailer(name, value))?,
        "has" => Check::Has(rest.to_owned()),
        "absent" => Check::Absent(rest.to_owned()),
        "framing" => Check::Framing(rest.to_owned()),
        "body" => {
            expected.body = if rest == "any" { None } else { Some(pieces(rest)?) };
            return Ok(true);
        }
        "decoded" => {
            (expected.body, expected.is_decoded) = (Some(pieces(rest)?), true);
            return Ok(true);
        }
        _ => return Ok(false),
    };
    expected.checks.push(check);
    Ok(true)
}

fn action(text: &str) -> Result<Action, String> {
    let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
    let milliseconds =
        || rest.parse::<u64>().map_err(|_| format!("`{rest}` is not a time in milliseconds"));
    Ok(match (word, rest) {
        ("send", _) if rest.starts_with("for ") => send_for(rest)?,
        ("send", _) => Action::Send { pieces: pieces(rest)?, may_fail: false, time: None },
        ("try", _) => {
            let rest = rest.strip_prefix("send ").ok_or("expected `try send`")?;
            Action::Send { pieces: pieces(rest)?, may_fail: true, time: None }
        }
        ("expect", "end") => Action::End { allowed: &[End::Finished] },
        ("expect", "reset") => Action::End { allowed: &[End::Reset] },
        ("expect", "cut") => Action::End { allowed: &[End::Finished, End::Reset] },
        ("expect", "reset after end") => Action::ResetAfterEnd,
        ("expect", _) => expect(rest)?,
        ("finish", "") => Action::Finish,
        ("close", "") => Action::Close,
        ("reset", "") => Action::Reset,
        ("pause", _) => Action::Pause(milliseconds()?),
        ("signal", _) => Action::Signal(rest.to_owned()),
        ("await", _) => Action::Await(rest.to_owned()),
        ("reload", _) => {
            let refused = rest.strip_suffix(" refused");
            let name = refused.unwrap_or(rest).to_owned();
            Action::Reload { name, refused: refused.is_some() }
        }
        ("write", _) => write(rest, false)?,
        ("rewrite", _) => write(rest, true)?,
        _ => return Err(format!("unknown step `{text}`")),
    })
}

/// Parses `for MS PIECES`.
fn send_for(text: &str) -> Result<Action, String> {
    let mut words = text.splitn(3, ' ').skip(1);
    let time = words.next().and_then(|word| word.parse().ok()).ok_or("`send for` needs a time")?;
    let pieces = pieces(words.next().unwrap_or_default())?;
    Ok(Action::Send { pieces, may_fail: false, time: Some(time) })
}

fn expect(text: &str) -> Result<Action, String> {
    let extents = [
        ("header of ", MessagePart::Header),
        ("truncated ", MessagePart::Truncated),
        ("fin-truncated ", MessagePart::FinTruncated),
    ];
    let given = extents.into_iter().find_map(|(word, it)| Some((text.strip_prefix(word)?, it)));
    let (text, part) = given.unwrap_or((text, MessagePart::Whole));
    let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
    let start = match word {
        "bytes" => return Ok(Action::Bytes(pieces(rest)?)),
        "nothing" => {
            let time =
                rest.parse().map_err(|_| format!("`{rest}` is not a time in milliseconds"))?;
            return Ok(Action::Nothing(time));
        }
        "request" => {
            let (method, target) = rest.split_once(' ').ok_or("a request needs a target")?;
            ExpectedStart::Request { method: method.to_owned(), target: target.to_owned() }
        }
        "response" => response(&rest.split_whitespace().collect::<Vec<_>>())?,
        _ => return Err(format!("unknown expectation `{text}`")),
    };
    let (checks, body) = (Vec::new(), Some(Vec::new()));
    Ok(Action::Message(Expected { start, part, checks, body, is_decoded: false }))
}

fn response(words: &[&str]) -> Result<ExpectedStart, String> {
    let (status, method_text) = match words {
        [status] => (*status, "GET"),
        [status, "to", method_text] => (*status, *method_text),
        _ => return Err("expected a status, optionally with `to METHOD`".to_owned()),
    };
    let status = status.parse().map_err(|_| format!("`{status}` is not a status"))?;
    let (method, old) = match method_text.strip_suffix("/1.0") {
        Some(method) => (method, true),
        None => (method_text, false),
    };
    Ok(ExpectedStart::Response { status, method: method.to_owned(), old })
}

fn pieces(text: &str) -> Result<Vec<Piece>, String> {
    let mut pieces = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let piece;
        (piece, rest) = match rest.strip_prefix('"') {
            Some(inside) => quoted(inside)?,
            None => numbers(rest)?,
        };
        pieces.push(piece);
        rest = rest.trim_start();
    }
    if pieces.is_empty() { Err("expected at least one piece".to_owned()) } else { Ok(pieces) }
}

/// Parses a text behind its opening quote. Returns it with the rest after the closing quote.
fn quoted(text: &str) -> Result<(Piece, &str), String> {
    let mut bytes = Vec::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Ok((Piece::Text(bytes), &text[at + 1..])),
            '\\' => {
                let escape = characters.next().map(|(_, escape)| escape);
                bytes.push(match escape {
                    Some('r') => b'\r',
                    Some('n') => b'\n',
                    Some('t') => b'\t',
                    Some('0') => 0,
                    Some('"') => b'"',
                    Some('\\') => b'\\',
                    Some('x') => {
                        let digits = text.get(at + 2..at + 4).unwrap_or_default();
                        characters.nth(1);
                        u8::from_str_radix(digits, 16).map_err(|_| format!("\\x{digits}?"))?
                    }
                    _ => return Err("an escape is \\r \\n \\t \\0 \\\" \\\\ or \\xHH".to_owned()),
                });
            }
            other => bytes.extend_from_slice(other.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    Err("a quote is not closed".to_owned())
}

/// Parses `fill LENGTH`, `pattern LENGTH SEED` or `chunk LENGTH SEED`. Returns it with the rest.
fn numbers(text: &str) -> Result<(Piece, &str), String> {
    let wrong = || format!("`{text}` is not a piece");
    if let Some(rest) = text.strip_prefix("fill ") {
        let (length, rest) = rest.split_once(' ').unwrap_or((rest, ""));
        return Ok((Piece::Fill(length.parse().map_err(|_| wrong())?), rest));
    }
    let mut words = text.splitn(4, ' ');
    let word = words.next().unwrap_or_default();
    let length = words.next().and_then(|it| it.parse().ok()).ok_or_else(wrong)?;
    let seed = words.next().and_then(|it| it.parse().ok()).ok_or_else(wrong)?;
    let piece = match word {
        "pattern" => Piece::Pattern(length, seed),
        "chunk" => Piece::Chunk(length, seed),
        _ => return Err(wrong()),
    };
    Ok((piece, words.next().unwrap_or_default()))
}

fn number(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| format!("`{text}` is not a number"))
}

fn descriptors(scenario: &mut Scenario, count: &str, assumed: &str) -> Result<(), String> {
    scenario.descriptors = Some((number(count)?, number(assumed)?));
    scenario.real = false;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Placeholders;

    const EXAMPLE: &str = r#"
# A comment.
proxy boost --origin http://{o1}
origin o1
  accept
    expect request GET /a
      field Host: {proxy}
      absent Connection
    send "HTTP/1.1 200 OK\r\n"
         "Content-Length: 2\r\n\r\n" pattern 2 7
  accept each
    close
client c1
  send "GET /a HTTP/1.1\r\n\x00\r\n"
  expect response 200 to HEAD/1.0
client c2 after c1
  pause 10
"#;

    #[test]
    fn a_scenario_is_parsed() {
        let scenario = Scenario::parse("example", EXAMPLE).unwrap();
        assert_eq!(scenario.command, ["boost", "--origin", "http://{o1}"]);
        assert_eq!(scenario.origins[0].scripts[0].steps.len(), 2);
        assert!(scenario.origins[0].each.is_some());
        assert_eq!(scenario.clients[1].after, ["c1"]);
        let mut names = Placeholders::default();
        names.set("o1", "127.0.0.1:80");
        assert_eq!(names.fill("http://{o1}/{o1.port}/{x}"), "http://127.0.0.1:80/80/{x}");
        let Action::Send { pieces, .. } = &scenario.clients[0].script.steps[0].action else {
            panic!()
        };
        assert_eq!(names.bytes(pieces), b"GET /a HTTP/1.1\r\n\0\r\n");
        let Action::Send { pieces, .. } = &scenario.origins[0].scripts[0].steps[1].action else {
            panic!()
        };
        assert!(names.bytes(pieces).starts_with(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"));
    }

    #[test]
    fn errors_name_their_line() {
        for (text, line) in [
            ("proxy boost\nnonsense here", "line 2"),
            ("proxy boost\nclient c\n  expect the unexpected", "line 3"),
            ("proxy boost\nclient c\n  send \"open", "line 3"),
            ("proxy boost\n  send \"a\"", "line 2"),
            ("proxy serve {a}\nfolder a\n  file b", "line 3"),
            ("proxy serve {a}\nclient c\n  write a b", "line 3"),
        ] {
            let wrong = Scenario::parse("wrong", text).unwrap_err();
            assert!(wrong.starts_with(line), "{wrong}");
        }
    }
}
