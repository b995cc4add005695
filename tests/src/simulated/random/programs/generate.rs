//! Turns the origins of a scenario into FastCGI programs.

use millrace_sim::SeededRandom;

use super::wire::{BAD_HEADERS, BAD_RECORDS};
use crate::simulated::random::plan::{
    Body, BodyFraming, Difficulty, HeaderSyntax, Method, RandomScenario, Request, ResponseFault,
};

/// Turns the origins of some scenarios into programs, by a random sequence of its own.
pub(in super::super) fn draw(scenario: &mut RandomScenario) {
    let mut random = SeededRandom::new(scenario.seed ^ 0x5052_4f47_5241_4d53);
    if scenario.proxy.forward || !random.chance(250) {
        return;
    }
    (scenario.proxy.fastcgi, scenario.proxy.secures_origins) = (true, false);
    scenario.proxy.upload_buffer = random.choose(&[None, None, Some(0), Some(1000), Some(100_000)]);
    let may_fail = scenario.difficulty != Difficulty::Easy;
    let requests = scenario.connections.iter_mut().flat_map(|it| &mut it.requests);
    requests.for_each(|request| adapt(request, &mut random, may_fail));
}

/// Makes a request and its response those of a program.
fn adapt(request: &mut Request, random: &mut SeededRandom, may_fail: bool) {
    if request.method == Method::Upgrade {
        request.method = Method::Get;
        request.body = Body::default();
        request.response.status = 200;
    }
    let response = &mut request.response;
    (response.interims, response.old, response.trailers) = (0, false, false);
    if response.syntax != HeaderSyntax::BareLf {
        response.syntax = HeaderSyntax::Strict;
    }
    if response.framing == BodyFraming::UntilClose {
        (response.framing, response.closes) = (BodyFraming::Chunks(5000), true);
    }
    let errors = random.choose(&[10, 9000, 200_000]);
    if random.chance(150) {
        response.errors = errors;
    }
    let end = random.length(200_000) - 1;
    let ends_early = random.chance(80) && may_fail;
    response.fault = match response.fault {
        Some(ResponseFault::Head(index)) => {
            Some(ResponseFault::ProgramHeader(index % BAD_HEADERS.len()))
        }
        Some(ResponseFault::Chunks(index)) => {
            Some(ResponseFault::ProgramRecords(index % BAD_RECORDS.len()))
        }
        Some(ResponseFault::InterimFlood) => {
            response.errors = 200_000;
            None
        }
        // Without a length, the end of the output is the end of the body.
        None if ends_early && response.framing == BodyFraming::Length => {
            Some(ResponseFault::EarlyEnd(end))
        }
        other => other,
    };
    // A drip of many steps takes longer than the proxy waits for the header.
    response.drip = response.drip.filter(|(step, _)| response.errors / step < 300);
}
