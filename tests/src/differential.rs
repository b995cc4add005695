//! Compares the proxy's parsers with independent ones. Within the limits of the proxy, its parsers
//! accept whatever the strict parser accepts. All parsers that accept a message agree about it.

use millrace_http1::{
    ChunkedDecoder, Fields, Framing, HeadLimits, HeadScan, Method, RequestHead, ResponseHead,
    request_framing, response_framing,
};

use crate::corpus::literal::Role;
use crate::corpus::valid;
use crate::strict::{self, Field, Message, RequestContext};

const LIMITS: HeadLimits =
    HeadLimits { bytes_max: 65_536, fields_max: 4096, target_bytes_max: 65_536 };

/// Bounds of the proxy that the strict parser does not have (docs/refused.md): the length of a
/// method, the number of connection options, the lines and bytes of trailers.
const METHOD_BYTES_MAX: usize = 32;
const CONNECTION_OPTIONS_MAX: usize = 32;
const TRAILERS_MAX: usize = 60;
const TRAILER_BYTES_MAX: usize = 8000;

/// Parses arbitrary bytes as a request and as a response.
///
/// # Panics
/// Panics if two parsers disagree.
pub fn fuzz_messages(data: &[u8]) {
    let data = &data[..data.len().min(LIMITS.bytes_max)];
    compare_request(data);
    compare_valid(data);
    for method in ["GET", "HEAD"] {
        compare_response(data, method);
    }
}

fn compare_request(data: &[u8]) {
    let Ok(Some(message)) = strict::request(data) else { return };
    if message.method().len() > METHOD_BYTES_MAX || is_beyond_bounds(&message) {
        return;
    }
    let mut head = RequestHead::default();
    let parsed = head.parse(data, &mut HeadScan::default(), &LIMITS);
    let Ok(Some(used)) = parsed else { panic!("{parsed:?} for {message:?}") };
    assert_eq!(head.method_bytes(), message.method().as_bytes());
    assert_eq!(head.target(), message.target().as_bytes());
    compare_fields(&head, &message.fields);
    let framing = request_framing(&head).unwrap_or_else(|why| panic!("{why} for {message:?}"));
    compare_body(&data[used..message.bytes], framing, &message.body);
}

/// Checks that the proxy reads the same method and content from a valid request, if it accepts the
/// request.
fn compare_valid(data: &[u8]) {
    let reading = valid::read(data, Role::Boost);
    let Some(request) = reading.requests.first() else { return };
    let mut head = RequestHead::default();
    let Ok(Some(used)) = head.parse(data, &mut HeadScan::default(), &LIMITS) else { return };
    assert_eq!(head.method_bytes(), request.method.as_bytes());
    match request_framing(&head) {
        Ok(Framing::Chunked) => {
            if let Some((body, _)) = dechunk(&data[used..]) {
                assert_eq!(body, request.body);
            }
        }
        Ok(framing) => {
            let length = request.body.len();
            assert!(matches!(framing, Framing::None) || framing == Framing::Length(length as u64));
            assert_eq!(data[used..][..length], request.body);
        }
        Err(_) => {}
    }
}

fn compare_response(data: &[u8], method: &str) {
    let Ok(Some(message)) = strict::response(data, &RequestContext::with(method), true) else {
        return;
    };
    if is_beyond_bounds(&message) {
        return;
    }
    let mut head = ResponseHead::default();
    let parsed = head.parse_lenient(data, &mut HeadScan::default(), &LIMITS);
    let Ok(Some(used)) = parsed else { panic!("{parsed:?} for {message:?}") };
    assert_eq!(head.status(), message.status());
    compare_fields(&head, &message.fields);
    let framing = response_framing(&head, Method::from_bytes(method.as_bytes()));
    let framing = framing.unwrap_or_else(|why| panic!("{why} for {message:?}"));
    compare_body(&data[used..message.bytes], framing, &message.body);
}

fn is_beyond_bounds(message: &Message) -> bool {
    let bytes = |field: &Field| field.name.len() + field.value.len() + 4;
    let connection = |field: &&Field| field.name.eq_ignore_ascii_case("connection");
    let options = message.fields.iter().filter(connection).flat_map(|field| {
        let options = field.value.split(|byte| *byte == b',');
        options.filter(|option| !option.trim_ascii().is_empty())
    });
    options.count() > CONNECTION_OPTIONS_MAX
        || message.trailers.len() > TRAILERS_MAX
        || message.trailers.iter().map(bytes).sum::<usize>() > TRAILER_BYTES_MAX
}

fn compare_fields(head: &Fields, fields: &[Field]) {
    let of_head = head.fields().iter().map(|field| (head.name_of(field), head.value_of(field)));
    let of_judge = fields.iter().map(|field| (field.name.as_bytes(), &field.value[..]));
    assert!(of_head.eq(of_judge), "fields of {:?}", String::from_utf8_lossy(head.bytes()));
}

/// Checks the proxy's reading of a body; `bytes` are a complete body as it was sent.
fn compare_body(bytes: &[u8], framing: Framing, body: &[u8]) {
    match framing {
        Framing::None => assert!(bytes.is_empty() && body.is_empty()),
        Framing::Length(length) => {
            assert_eq!(length, body.len() as u64);
            assert_eq!(bytes, body);
        }
        Framing::UntilClose => assert_eq!(bytes, body),
        Framing::Chunked => {
            assert_eq!(dechunk(bytes), Some((body.to_owned(), bytes.len())));
        }
    }
}

/// Returns the content and the encoded length of a chunked body, if it is complete and valid.
fn dechunk(bytes: &[u8]) -> Option<(Vec<u8>, usize)> {
    let mut input = bytes.to_owned();
    let mut decoder = ChunkedDecoder::default();
    let step = decoder.decode(&mut input).ok().filter(|step| step.ended)?;
    Some((input[step.payload].to_owned(), step.consumed))
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::{env, fs};

    use super::*;
    use crate::corpus::case;
    use crate::corpus::literal::{Substitutions, fill};
    use crate::corpus::random::Random;
    use crate::corpus::templates::Templates;

    /// Found by fuzzing: the strict parser accepts any number of connection options.
    #[test]
    fn more_connection_options_than_the_proxy_takes() {
        for options in ["close\r\n".repeat(33), format!("{}\r\n", "a, ,".repeat(33))] {
            let lines = options.replace("\r\n", "\r\nConnection: ");
            let head = format!("Host: a.test\r\nConnection: {lines}close\r\n\r\n");
            fuzz_messages(format!("GET / HTTP/1.1\r\n{head}").as_bytes());
            fuzz_messages(format!("HTTP/1.1 204 OK\r\n{head}").as_bytes());
        }
    }

    #[test]
    fn the_hostile_corpus_and_mutants_of_it() {
        let cases = case::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus"));
        let folder = env::var_os("MESSAGES");
        let substitutions = Substitutions {
            host: "a.test:8000".to_owned(),
            role: Role::Boost,
            own: "a.test:8000".to_owned(),
            via: "millrace".to_owned(),
        };
        for (index, case) in cases.iter().enumerate() {
            let bytes =
                |lines, sent| fill(lines, &substitutions, sent).expect("known marks").bytes();
            let response = case.responses.iter().map(|lines| bytes(lines, false));
            for (part, message) in response.chain([bytes(&case.sent, true)]).enumerate() {
                if let Some(folder) = &folder {
                    let file = Path::new(folder).join(format!("case-{index}-{part}"));
                    fs::write(file, &message).expect("the folder of MESSAGES can be written to");
                }
                fuzz_messages(&message);
            }
        }
        let templates = Templates::new(&cases, Role::Boost);
        let mut compared = 0;
        for index in 0..20_000 {
            let mutant = templates.mutant(&mut Random::of(1, index));
            let sent = mutant.segments(&substitutions).concat();
            compared += usize::from(matches!(strict::request(&sent), Ok(Some(_))));
            fuzz_messages(&sent);
            let response = mutant.script(&substitutions).map(|(_, response)| response.bytes());
            fuzz_messages(&response.unwrap_or_default());
        }
        assert!(compared > 1_000, "only {compared} of 20,000 mutants have one meaning");
    }

    #[test]
    fn the_corpus_of_the_target() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/messages");
        let files = fs::read_dir(folder).expect("the corpus is there");
        let files: Vec<_> = files.map(|file| file.expect("readable").path()).collect();
        assert!(files.len() >= 9, "the corpus of the target is there");
        for file in files {
            fuzz_messages(&fs::read(file).expect("readable"));
        }
    }
}
