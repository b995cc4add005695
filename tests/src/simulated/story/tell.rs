//! A story in words: what was planned for it, one line a piece.

use std::fmt;

use super::plan::{
    Answer, Body, Break, Conduct, Connection, Event, Form, Naming, Oddity, Reader, Request, Story,
    Wrong,
};
use super::stage::{bytes_per_worker, command};
use super::words;

impl fmt::Display for Story {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let places: Vec<String> = (0..self.origins.len()).map(|at| format!("{{o{at}}}")).collect();
        writeln!(f, "story {} in a {:?} world, {:?}", self.seed, self.world, self.temper)?;
        writeln!(f, "proxy {}", command(self, &places).join(" "))?;
        if let Some((real, assumed)) = self.proxy.descriptors {
            writeln!(f, "descriptors {real} assumed {assumed}")?;
        }
        if let Some(bytes) = bytes_per_worker(self) {
            writeln!(f, "memory {bytes} bytes a worker")?;
        }
        for calm in &self.calm {
            writeln!(f, "without {calm:?}")?;
        }
        for (at, origin) in self.origins.iter().enumerate() {
            write!(f, "origin o{at}")?;
            if origin.conduct != Conduct::Good {
                write!(f, " {:?}", origin.conduct)?;
            }
            if origin.naming != Naming::Address {
                write!(f, " name {:?}", origin.naming)?;
            }
            writeln!(f)?;
        }
        for (at, connection) in self.connections.iter().enumerate() {
            tell_connection(f, self, at, connection)?;
        }
        for event in &self.events {
            match event {
                Event::Reload(ms, limits) => writeln!(f, "reload at {ms} ms with {limits:?}")?,
                Event::Drain(ms) => writeln!(f, "drain at {ms} ms")?,
            }
        }
        Ok(())
    }
}

fn tell_connection(
    f: &mut fmt::Formatter<'_>,
    story: &Story,
    at: usize,
    connection: &Connection,
) -> fmt::Result {
    write!(f, "client {}.{at}", connection.client)?;
    if connection.begins_ms > 0 {
        write!(f, " at {} ms", connection.begins_ms)?;
    }
    if connection.pipelined {
        f.write_str(" pipelines")?;
    }
    if connection.reader != Reader::Eager {
        write!(f, " reads {:?}", connection.reader)?;
    }
    let innocent = if story.is_innocent(connection) { ", innocent" } else { "" };
    writeln!(f, " {:?}{innocent}", connection.ending)?;
    connection.requests.iter().try_for_each(|request| tell_request(f, request))
}

fn tell_request(f: &mut fmt::Formatter<'_>, request: &Request) -> fmt::Result {
    let Request { id, method, origin, body, .. } = request;
    write!(f, "  {method:?} /r/{id} at o{origin}")?;
    for (flag, word) in [(request.old, " HTTP/1.0"), (request.closes, " close")] {
        f.write_str(if flag { word } else { "" })?;
    }
    if request.pause_ms > 0 {
        write!(f, " after {} ms", request.pause_ms)?;
    }
    tell_body(f, *body)?;
    if let Some(Break { at, how }) = request.breaks {
        write!(f, ", {how:?} at byte {at}")?;
    }
    match request.oddity {
        Some(Oddity::Head(index)) => {
            write!(f, ", instead \"{}\"", words::ODD_HEADS[index].escape_debug())?;
        }
        Some(Oddity::Body(index)) => {
            write!(f, ", body \"{}\"", words::ODD_CHUNKS[index].escape_debug())?;
        }
        None => {}
    }
    f.write_str("\n    ")?;
    tell_answer(f, &request.answer)?;
    writeln!(f)
}

fn tell_body(f: &mut fmt::Formatter<'_>, body: Body) -> fmt::Result {
    if body.length > 0 || body.chunk.is_some() {
        write!(f, ", body of {} bytes", body.length)?;
    }
    if let Some(size) = body.chunk {
        write!(f, " in chunks of {size}")?;
    }
    for (flag, word) in [(body.trailers, " with trailers"), (body.expects, " expecting 100")] {
        f.write_str(if flag { word } else { "" })?;
    }
    Ok(())
}

fn tell_answer(f: &mut fmt::Formatter<'_>, answer: &Answer) -> fmt::Result {
    write!(f, "answer {} of {} bytes by {:?}", answer.status, answer.length, answer.frame)?;
    for (flag, word) in [
        (answer.old, " HTTP/1.0"),
        (answer.closes, " close"),
        (answer.early, " early"),
        (answer.trailers, " with trailers"),
    ] {
        f.write_str(if flag { word } else { "" })?;
    }
    if answer.interims > 0 {
        write!(f, " behind {} interim ones", answer.interims)?;
    }
    if answer.delay_ms > 0 {
        write!(f, " after {} ms", answer.delay_ms)?;
    }
    if answer.form != Form::Strict {
        write!(f, ", {:?}", answer.form)?;
    }
    if let Some((size, ms)) = answer.drip {
        write!(f, ", {size} bytes every {ms} ms")?;
    }
    match answer.wrong {
        None => Ok(()),
        Some(Wrong::Breaks(Break { at, how })) => write!(f, ", {how:?} at byte {at}"),
        Some(Wrong::Goes(index)) => {
            write!(f, ", behind it \"{}\"", words::STRAYS[index].escape_debug())
        }
        Some(Wrong::Head(index)) => {
            write!(f, ", instead \"{}\"", words::BAD_HEADS[index].escape_debug())
        }
        Some(Wrong::Chunks(index)) => {
            write!(f, ", at the end \"{}\"", words::BAD_CHUNKS[index].escape_debug())
        }
        Some(other) => write!(f, ", {other:?}"),
    }
}
