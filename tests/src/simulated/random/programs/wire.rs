//! The responses of FastCGI programs as bytes, with their faults (FastCGI specification 1.0,
//! RFC 3875 section 6).

use crate::simulated::random::plan::{
    BodyFraming, HeaderSyntax, Method, Request, ResponseFault, ResponsePlan,
};
use crate::simulated::random::wire::{has_no_body, response_payload};

pub(super) const BEGIN_REQUEST: u8 = 1;
const END_REQUEST: u8 = 3;
pub(super) const PARAMS: u8 = 4;
pub(super) const STDIN: u8 = 5;
const STDOUT: u8 = 6;
const STDERR: u8 = 7;

/// The padding of the records of a response, in turn.
const PADDINGS: [u8; 5] = [0, 3, 0, 7, 255];

/// Returns a record of the request 1 with this padding.
fn record(record_type: u8, content: &[u8], padding: u8) -> Vec<u8> {
    let [length1, length0] = (content.len() as u16).to_be_bytes();
    let mut bytes = vec![1, record_type, 0, 1, length1, length0, padding, 0];
    bytes.extend_from_slice(content);
    bytes.resize(bytes.len() + usize::from(padding), b'#');
    bytes
}

/// Appends output in records of `size` bytes.
fn add_output(bytes: &mut Vec<u8>, output: &[u8], size: usize) {
    for (piece, padding) in output.chunks(size).zip(PADDINGS.into_iter().cycle()) {
        bytes.extend(record(STDOUT, piece, padding));
    }
}

/// Returns the complete response to a request.
pub(in super::super) fn response(request: &Request) -> Vec<u8> {
    let plan = &request.response;
    let size = match plan.framing {
        BodyFraming::Chunks(size) => size.min(65_535),
        BodyFraming::Length | BodyFraming::UntilClose => 8000,
    };
    let mut bytes = Vec::new();
    let (before, after) = (plan.errors - plan.errors / 3, plan.errors / 3);
    vec![b'e'; before].chunks(8000).for_each(|part| bytes.extend(record(STDERR, part, 1)));
    let output = output(request);
    let (first, second) = match plan.fault {
        Some(ResponseFault::EarlyEnd(at)) => (&output[..at % output.len()], &output[..0]),
        _ => output.split_at(output.len() / 2),
    };
    add_output(&mut bytes, first, size);
    vec![b'e'; after].chunks(8000).for_each(|part| bytes.extend(record(STDERR, part, 0)));
    add_output(&mut bytes, second, size);
    if let Some(ResponseFault::ProgramRecords(index)) = plan.fault {
        bytes.extend_from_slice(BAD_RECORDS[index % BAD_RECORDS.len()]);
        return bytes;
    }
    // RFC 3875 does not know FastCGI: the end of the output may be left out.
    if request.id.is_multiple_of(3) {
        bytes.extend(record(STDOUT, b"", 0));
    }
    let exit_status = request.id as u8 % 2;
    bytes.extend(record(END_REQUEST, &[0, 0, 0, exit_status, 0, 0, 0, 0], 5));
    bytes
}

/// Returns what the program writes to its standard output.
fn output(request: &Request) -> Vec<u8> {
    let Request { id, method, response: plan, .. } = request;
    match plan.fault {
        Some(ResponseFault::ProgramHeader(index)) => {
            let text = BAD_HEADERS[index % BAD_HEADERS.len()];
            let text = text.replace("{id}", &id.to_string());
            return text.replace("{long}", &"a".repeat(70_000)).into_bytes();
        }
        Some(ResponseFault::UnrequestedUpgrade) => {
            return format!("Status: 101 Now\nX-Id: {id}\n\nbytes of that").into_bytes();
        }
        _ => {}
    }
    let payload = response_payload(*id, plan.length);
    let mut output = header(*id, plan, payload.len());
    // The bytes behind the header of a response to HEAD are dropped.
    let is_dropped = *method == Method::Head && plan.framing == BodyFraming::Length;
    if !has_no_body(plan.status) && !is_dropped {
        output.extend_from_slice(&payload);
    }
    output
}

fn header(id: u32, plan: &ResponsePlan, length: usize) -> Vec<u8> {
    let mut header = format!("X-Id: {id}\r\nConnection: close\r\n");
    // 200 needs no field.
    if plan.status != 200 || id.is_multiple_of(2) {
        header += &format!("Status: {} Fine\r\n", plan.status);
    }
    let is_malformed = matches!(plan.fault, Some(ResponseFault::ProgramRecords(_)));
    if plan.framing == BodyFraming::Length && !has_no_body(plan.status) && !is_malformed {
        header += &format!("Content-Length: {length}\r\n");
    }
    header += "\r\n";
    match plan.syntax {
        HeaderSyntax::BareLf => header.replace("\r\n", "\n").into_bytes(),
        _ => header.into_bytes(),
    }
}

/// Returns the ids of the requests whose environments occur in the bytes sent to an origin.
pub(in super::super) fn requests_in(sent: &[u8]) -> impl Iterator<Item = u32> {
    const NAME: &[u8] = b"REQUEST_URI";
    let found = sent.windows(NAME.len()).enumerate().filter(|(_, part)| *part == NAME);
    found.filter_map(|(at, _)| {
        // The lengths of the name and of the value precede the name, a byte each.
        let lengths = sent.get(at.checked_sub(2)?..at)?;
        let value = sent.get(at + NAME.len()..)?.get(..usize::from(lengths[1]))?;
        let target = std::str::from_utf8(value).ok().filter(|_| lengths[0] == NAME.len() as u8)?;
        let (path, id) = target.rsplit_once('/')?;
        id.parse().ok().filter(|_| path.ends_with("/r"))
    })
}

/// Headers of programs that must not reach a client.
pub(in super::super) const BAD_HEADERS: [&str; 10] = [
    "no colon\n\nwrong",
    ": no name\nX-Id: {id}\n\nwrong",
    "Status: 100 Continue\nX-Id: {id}\n\nwrong",
    "Status: 2x0 Odd\nX-Id: {id}\n\nwrong",
    "Status: 200 Fine\nStatus: 200 Fine\nX-Id: {id}\n\nwrong",
    "X-Id: {id}\nContent-Length: +5\n\nwrong",
    "X-Id: {id}\nContent-Length: 5\nContent-Length: 6\n\nwrong",
    "X-Id: {id}\nX: a\0b\n\nwrong",
    "X-Id: {id}\nX : a\n\nwrong",
    "X-Id: {id}\nX: {long}\n\nwrong",
];

/// Invalid records after valid output. The response must never look whole.
pub(in super::super) const BAD_RECORDS: [&[u8]; 11] = [
    // Output and the end of another request.
    b"\x01\x06\x00\x02\x00\x05\x00\x00wrong",
    b"\x01\x06\x01\x01\x00\x05\x00\x00wrong",
    b"\x01\x03\x00\x07\x00\x08\x00\x00\0\0\0\0\0\0\0\0",
    // Another version, and types that only a server sends.
    b"\x02\x06\x00\x01\x00\x05\x00\x00wrong",
    b"\x01\x05\x00\x01\x00\x05\x00\x00wrong",
    b"\x01\x0b\x00\x01\x00\x05\x00\x00wrong",
    // Output after its end.
    b"\x01\x06\x00\x01\x00\x00\x00\x00\x01\x06\x00\x01\x00\x05\x00\x00wrong",
    // An end that is too short, and three refusals.
    b"\x01\x03\x00\x01\x00\x04\x00\x00\0\0\0\0",
    b"\x01\x03\x00\x01\x00\x08\x00\x00\0\0\0\0\x01\0\0\0",
    b"\x01\x03\x00\x01\x00\x08\x00\x00\0\0\0\0\x02\0\0\0",
    b"\x01\x03\x00\x01\x00\x08\x00\x00\0\0\0\0\x03\0\0\0",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_their_environments() {
        let sent = b"xx\x0b\x08REQUEST_URI/a/r/12\x0b\x04REQUEST_URI/r/3\x0b\x05REQUEST_URI/r/45";
        assert_eq!(requests_in(sent).collect::<Vec<_>>(), [3, 45]);
        let sent = b"\x0b\x07REQUEST_URI/a/r/12\x0a\x04REQUEST_URI/r/3";
        assert_eq!(requests_in(sent).collect::<Vec<_>>(), [12]);
    }
}
