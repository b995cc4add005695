//! Prints a random scenario: one line for each planned item.

use std::fmt;

use super::plan::{
    Body, Break, Connection, FileRequest, HeaderSyntax, Malformation, NameBehaviour, OperatorEvent,
    OriginBehaviour, PlannedName, RandomScenario, Reader, Request, ResponseFault, ResponsePlan,
    ServedFolder,
};
use super::run::{bytes_per_worker, command};
use super::wire;

impl fmt::Display for RandomScenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let places: Vec<String> = (0..self.origins.len()).map(|at| format!("{{o{at}}}")).collect();
        writeln!(f, "scenario {} in a {:?} world, {:?}", self.seed, self.world, self.difficulty)?;
        writeln!(f, "proxy {}", command(self, &places).join(" "))?;
        if let Some((real, assumed)) = self.proxy.descriptors {
            writeln!(f, "descriptors {real} assumed {assumed}")?;
        }
        if let Some(bytes) = bytes_per_worker(self) {
            writeln!(f, "memory {bytes} bytes a worker")?;
        }
        for fault in &self.disabled_faults {
            writeln!(f, "without {fault:?}")?;
        }
        self.folder.iter().try_for_each(|folder| write_folder(f, folder))?;
        for (at, origin) in self.origins.iter().enumerate() {
            write!(f, "origin o{at}")?;
            if origin.behaviour != OriginBehaviour::Good {
                write!(f, " {:?}", origin.behaviour)?;
            }
            if origin.naming != NameBehaviour::Address {
                write!(f, " name {:?}", origin.naming)?;
            }
            if self.proxy.secures_origins {
                write!(f, " {:?}", origin.tls)?;
            }
            writeln!(f)?;
        }
        for (at, connection) in self.connections.iter().enumerate() {
            write_connection(f, self, at, connection)?;
        }
        for event in &self.events {
            match event {
                OperatorEvent::Reload(ms, limits) => {
                    writeln!(f, "reload at {ms} ms with {limits:?}")?
                }
                OperatorEvent::Drain(ms) => writeln!(f, "drain at {ms} ms")?,
            }
        }
        Ok(())
    }
}

fn write_connection(
    f: &mut fmt::Formatter<'_>,
    scenario: &RandomScenario,
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
    if scenario.proxy.secured {
        write!(f, " {:?}", connection.tls)?;
    }
    let must_succeed = if scenario.must_succeed(connection) { ", must succeed" } else { "" };
    writeln!(f, " {:?}{must_succeed}", connection.ending)?;
    connection
        .requests
        .iter()
        .try_for_each(|request| write_request(f, request, &scenario.target(request)))
}

fn write_folder(f: &mut fmt::Formatter<'_>, folder: &ServedFolder) -> fmt::Result {
    writeln!(f, "folder with {:?}", folder.faults)?;
    for (at, PlannedName { kind, length }) in folder.names.iter().enumerate() {
        writeln!(f, "  {} {kind:?} of {length} bytes", kind.target(at))?;
    }
    if let Some((name, faults)) = folder.faulty {
        writeln!(f, "  of the name {name} {faults:?}")?;
    }
    folder.changes.iter().try_for_each(|change| {
        writeln!(f, "  the name {} at {} ms {:?}", change.name, change.at_ms, change.kind)
    })
}

fn write_request(f: &mut fmt::Formatter<'_>, request: &Request, target: &str) -> fmt::Result {
    let Request { method, origin, body, .. } = request;
    write!(f, "  {method:?} {target} at o{origin}")?;
    if let Some(FileRequest { range, accept, condition, .. }) = request.file {
        range.iter().try_for_each(|it| write!(f, " {it:?}"))?;
        accept.iter().try_for_each(|it| write!(f, " accepts {it}"))?;
        condition.iter().try_for_each(|it| write!(f, " {it:?}"))?;
    }
    for (flag, word) in [(request.old, " HTTP/1.0"), (request.closes, " close")] {
        f.write_str(if flag { word } else { "" })?;
    }
    if request.pause_ms > 0 {
        write!(f, " after {} ms", request.pause_ms)?;
    }
    write_body(f, *body)?;
    if let Some(Break { at, how }) = request.breaks {
        write!(f, ", {how:?} at byte {at}")?;
    }
    match request.malformation {
        Some(Malformation::Head(index)) => {
            write!(f, ", instead \"{}\"", wire::BAD_REQUEST_HEADERS[index].escape_debug())?;
        }
        Some(Malformation::Body(index)) => {
            write!(f, ", body \"{}\"", wire::BAD_REQUEST_CHUNKS[index].escape_debug())?;
        }
        None => {}
    }
    f.write_str("\n    ")?;
    write_response(f, &request.response)?;
    writeln!(f)
}

fn write_body(f: &mut fmt::Formatter<'_>, body: Body) -> fmt::Result {
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

fn write_response(f: &mut fmt::Formatter<'_>, response: &ResponsePlan) -> fmt::Result {
    write!(
        f,
        "response {} of {} bytes by {:?}",
        response.status, response.length, response.framing
    )?;
    for (flag, word) in [
        (response.old, " HTTP/1.0"),
        (response.closes, " close"),
        (response.early, " early"),
        (response.trailers, " with trailers"),
    ] {
        f.write_str(if flag { word } else { "" })?;
    }
    if response.interims > 0 {
        write!(f, " after {} interim ones", response.interims)?;
    }
    if response.delay_ms > 0 {
        write!(f, " after {} ms", response.delay_ms)?;
    }
    if response.syntax != HeaderSyntax::Strict {
        write!(f, ", {:?}", response.syntax)?;
    }
    if response.errors > 0 {
        write!(f, ", {} bytes of standard error", response.errors)?;
    }
    if let Some((size, ms)) = response.drip {
        write!(f, ", {size} bytes every {ms} ms")?;
    }
    match response.fault {
        None => Ok(()),
        Some(ResponseFault::Breaks(Break { at, how })) => write!(f, ", {how:?} at byte {at}"),
        Some(ResponseFault::ExtraBytes(index)) => {
            write!(f, ", followed by \"{}\"", wire::UNREQUESTED_BYTES[index].escape_debug())
        }
        Some(ResponseFault::Head(index)) => {
            write!(f, ", instead \"{}\"", wire::BAD_RESPONSE_HEADERS[index].escape_debug())
        }
        Some(ResponseFault::Chunks(index)) => {
            write!(f, ", at the end \"{}\"", wire::BAD_RESPONSE_CHUNKS[index].escape_debug())
        }
        Some(other) => write!(f, ", {other:?}"),
    }
}
