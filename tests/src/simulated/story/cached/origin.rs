//! The origin: reads requests, and answers each as the story says.

use std::collections::VecDeque;

use millrace_engine::{Address, Instant};
use millrace_sim::{ActorSocket, ReadResult, World};

use super::super::plan::{Break, Form, Frame, How};
use super::super::reading::{Part, Reading, Side};
use super::super::sending::{Look, Out, Sending, Sent};
use super::super::words::chunked;
use super::Said;
use super::book::Book;
use crate::scenario::pattern;
use crate::strict::Message;

pub(super) struct Origin {
    listener: ActorSocket,
    lines: Vec<Line>,
    book: Book,
}

/// A connection.
struct Line {
    socket: Option<ActorSocket>,
    reading: Reading,
    sending: Sending,
    /// The request whose body is awaited.
    request: Option<Message>,
    /// What the next marks in `sending` mean.
    marks: VecDeque<Mark>,
    book: Book,
}

/// The head of this answer is behind; or that of a 304 that says this of it.
type Mark = (usize, Option<Said>);

/// The body of an answer.
pub(super) fn body(serial: usize, length: usize) -> Vec<u8> {
    pattern(length, serial as u64 + 1000)
}

impl Origin {
    pub(super) fn new(world: &World, book: &Book) -> (Self, Address) {
        let address = Address::Tcp(([127, 0, 0, 1], 0).into());
        let listener = world.actor_listen(&address);
        let address = world.local_address(listener);
        (Self { listener, lines: Vec::new(), book: book.clone() }, address)
    }

    pub(super) fn step(&mut self, world: &World) -> Option<Instant> {
        while let Some((socket, _)) = world.accept(self.listener) {
            self.lines.push(Line {
                socket: Some(socket),
                reading: Reading::new(Side::Requests),
                sending: Sending::default(),
                request: None,
                marks: VecDeque::new(),
                book: self.book.clone(),
            });
        }
        let looks = self.lines.iter_mut().filter_map(|line| line.step(world));
        let look = looks.min();
        self.lines.retain(|line| line.socket.is_some());
        look
    }

    pub(super) fn close(&mut self, world: &World) {
        for line in &mut self.lines {
            line.close(world);
        }
        world.close(self.listener);
    }
}

impl Line {
    fn close(&mut self, world: &World) {
        if let Some(socket) = self.socket.take() {
            world.close(socket);
        }
    }

    fn step(&mut self, world: &World) -> Option<Instant> {
        let mut look = Look::default();
        while let Some(socket) = self.socket {
            match world.read(socket, 64 * 1024) {
                ReadResult::Bytes(bytes) => self.reading.add(&bytes),
                ReadResult::End | ReadResult::Failed(_) => self.close(world),
                ReadResult::Nothing => break,
            }
        }
        loop {
            match self.reading.next(None) {
                Ok(None) => break,
                Ok(Some(Part::Head(message))) => self.request = Some(message),
                Ok(Some(Part::Body(_))) => {}
                Ok(Some(Part::End)) => {
                    if let Some(request) = self.request.take() {
                        self.answer(world, &request);
                    }
                }
                Err(why) => {
                    self.book.fail(world, "doubtful", format!("the origin gets {why}"));
                    break;
                }
            }
        }
        self.send(world, &mut look);
        look.0
    }

    fn send(&mut self, world: &World, look: &mut Look) {
        while let Some(socket) = self.socket {
            match self.sending.step(world, socket) {
                Sent::Until(until) => return look.at(until),
                Sent::Mark => {
                    let (serial, says) = self.marks.pop_front().expect("each mark has a meaning");
                    self.book.touch(world, serial, says);
                }
                Sent::Gone => self.socket = None,
                Sent::All | Sent::Full => return,
            }
        }
    }

    fn answer(&mut self, world: &World, request: &Message) {
        let value = |name: &str| {
            let field = request.fields.iter().find(|field| field.is(name));
            field.map(|field| String::from_utf8_lossy(&field.value).into_owned())
        };
        let asker = value("x-id").and_then(|id| id.parse().ok()).unwrap_or(0);
        let url = request.target().strip_prefix("/u").and_then(|url| url.parse::<usize>().ok());
        let story = self.book.story();
        let Some(url) = url.filter(|url| *url < story.says.len()) else {
            let words = format!("{} came, which nobody asked for", request.target());
            return self.book.fail(world, "unasked", words);
        };
        if let Some((first, last)) = self.book.range_of(asker) {
            let sent = value("range");
            if sent != Some(format!("bytes={first}-{last}")) {
                let words = format!("request {asker} for bytes {first}-{last} comes with {sent:?}");
                return self.book.fail(world, "range-lost", words);
            }
            self.book.met("origin: is asked for a range");
        }
        let language = u8::from(value("accept-language").is_some_and(|it| it == "l1"));
        let says = &story.says[url];
        let said = says[self.book.answers(url) % says.len()];
        if said.delay_ms > 0 {
            self.sending.add(Out::Pause(said.delay_ms));
        }
        let tag = value("if-none-match").and_then(|it| it.trim_matches('"').parse::<usize>().ok());
        if let Some(serial) = tag
            && let Some(record) = self.book.record(serial)
            && record.url == url
            && (!record.said.varies || record.language == language)
            && said.confirms
            && !said.control.own
        {
            self.book.met("origin: says that it holds");
            return self.confirm(serial, said);
        }
        let rest = value("if-range").and_then(|it| it.trim_matches('"').parse::<usize>().ok());
        if let Some(serial) = rest
            && let Some(record) = self.book.record(serial)
            && (record.url, record.language) == (url, language)
            && said.confirms
            && !said.control.own
            && let Some(part) = value("range").and_then(|it| range(&it, record.said.length))
        {
            self.book.met("origin: gives the rest");
            self.book.complete(serial);
            let given = Said { frame: Frame::Length, breaks: None, tagged: true, ..record.said };
            return self.give(serial, given, Some(part));
        }
        match request.method() {
            "POST" => self.change(asker, url, said),
            "HEAD" => {
                let head = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nETag: \"h\"\r\n\
                            Cache-Control: no-store\r\n\r\n";
                self.sending.add(Out::Bytes(head.into()));
            }
            _ => {
                let part = value("range").and_then(|it| range(&it, said.length));
                let part = part.filter(|_| said.status == 200);
                let said = match part {
                    Some(_) => Said { frame: Frame::Length, breaks: None, ..said },
                    None => said,
                };
                let serial = self.book.answer(said, asker, url, language);
                self.give(serial, said, part);
            }
        }
    }

    fn confirm(&mut self, serial: usize, said: Said) {
        let control = said.control.text;
        let head = format!(
            "HTTP/1.1 304 Not Modified\r\nETag: \"{serial}\"\r\nCache-Control: {control}\r\n\r\n"
        );
        self.sending.add(Out::Bytes(said.form.write(head)));
        // An ambiguous one says nothing about what is stored.
        if !said.form.is_ambiguous() {
            self.mark(serial, Some(said));
        }
    }

    fn change(&mut self, asker: u32, url: usize, said: Said) {
        let own = super::Control { text: "no-store", fresh_s: 0, spare_s: 0, own: true };
        let said = Said { control: own, varies: false, breaks: None, ..said };
        let serial = self.book.answer(said, asker, url, 0);
        self.give(serial, said, None);
    }

    fn mark(&mut self, serial: usize, says: Option<Said>) {
        self.sending.add(Out::Mark);
        self.marks.push_back((serial, says));
    }

    /// Sends the answer of this number, or the part of it.
    fn give(&mut self, serial: usize, said: Said, range: Option<(usize, usize)>) {
        let payload = body(serial, said.length);
        let (status, payload) = match range {
            Some((first, last)) => (206, payload[first..=last].to_vec()),
            None => (said.status, payload),
        };
        let mut head = format!("HTTP/1.1 {status} So\r\nX-Serial: {serial}\r\n");
        head += &format!("Cache-Control: {}\r\nAccept-Ranges: bytes\r\n", said.control.text);
        if said.tagged || range.is_some() {
            head += &format!("ETag: \"{serial}\"\r\n");
        }
        if said.varies {
            head += "Vary: Accept-Language\r\n";
        }
        if let Some((first, last)) = range {
            head += &format!("Content-Range: bytes {first}-{last}/{}\r\n", said.length);
        }
        let bytes = match said.frame {
            Frame::Length => {
                head += &format!("Content-Length: {}\r\n", payload.len());
                payload
            }
            Frame::Chunks(size) => {
                head += "Transfer-Encoding: chunked\r\n";
                chunked(&payload, size)
            }
            Frame::UntilClose => payload,
        };
        head += "\r\n";
        self.book.met(format!("answer: {}", said.control.text));
        if said.form != Form::Strict {
            self.book.met(format!("answer: {:?}", said.form));
        }
        self.sending.add(Out::Bytes(said.form.write(head)));
        self.mark(serial, None);
        match (said.breaks, said.drip) {
            (Some(breaks), _) => self.break_off(bytes, breaks),
            (None, Some((size, ms))) => self.sending.add(Out::Drip(bytes, size, ms)),
            (None, None) => self.sending.add(Out::Bytes(bytes)),
        }
        if said.frame == Frame::UntilClose {
            self.sending.add(Out::Finish);
        }
    }

    /// Less than all of it.
    fn break_off(&mut self, bytes: Vec<u8>, breaks: Break) {
        self.book.met("answer: breaks off");
        let count = breaks.at % bytes.len().max(1);
        self.sending.add(Out::Bytes(bytes[..count.min(bytes.len())].to_vec()));
        self.sending.add(match breaks.how {
            How::Finish | How::Pause(_) => Out::Finish,
            How::Close => Out::Close,
            How::Reset => Out::Reset,
            How::Stop => Out::Stop,
        });
    }
}

/// `bytes=FIRST-LAST`, or without the last, if some of that is there.
fn range(value: &str, length: usize) -> Option<(usize, usize)> {
    let (first, last) = value.strip_prefix("bytes=")?.split_once('-')?;
    let first: usize = first.parse().ok()?;
    let end = length.checked_sub(1)?;
    let last = if last.is_empty() { end } else { last.parse::<usize>().ok()?.min(end) };
    (first <= last).then_some((first, last))
}
