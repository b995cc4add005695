//! Makes a failing story smaller: takes pieces away, one after the other, for as long as what is
//! left fails in the same way in the world of the same seed.

use std::time::{Duration, Instant};

use millrace_sim::Faults;

use super::plan::{
    Body, Calm, Conduct, Connection, Ending, Form, Frame, Naming, Reader, Request, Story,
};
use super::play_story;
use super::tally::Failure;

/// A smaller story that fails as `story` does, and how. Takes `time` at most, and a run more.
///
/// `plays` says how a story fails, if it does: [`fails`] in earnest.
pub fn shrink(
    story: &Story,
    failure: &Failure,
    time: Duration,
    plays: &dyn Fn(&Story) -> Option<Failure>,
) -> (Story, Failure) {
    let mut best = Best { story: story.clone(), failure: failure.clone(), plays };
    let end = Instant::now() + time;
    loop {
        let before = best.story.clone();
        for pass in PASSES {
            pass(&mut best, end);
        }
        if best.story == before || Instant::now() >= end {
            return (best.story, best.failure);
        }
    }
}

/// How a story fails.
pub(super) fn fails(story: &Story) -> Option<Failure> {
    play_story(story, false).failure
}

struct Best<'a> {
    story: Story,
    failure: Failure,
    plays: &'a dyn Fn(&Story) -> Option<Failure>,
}

impl Best<'_> {
    /// Keeps the story that `change` makes if it is another one and fails in the same way.
    fn attempt(&mut self, end: Instant, change: &dyn Fn(&mut Story)) -> bool {
        let mut story = self.story.clone();
        change(&mut story);
        if story == self.story || story.connections.is_empty() || Instant::now() >= end {
            return false;
        }
        let kind = self.failure.kind;
        match (self.plays)(&story) {
            Some(failure) if failure.kind == kind => {
                (self.story, self.failure) = (story, failure);
                true
            }
            _ => false,
        }
    }
}

type Pass = fn(&mut Best<'_>, Instant);

/// The largest pieces first.
const PASSES: [Pass; 6] = [connections, requests, world, proxy, origins, details];

/// Takes runs of connections away, long ones first.
fn connections(best: &mut Best<'_>, end: Instant) {
    let mut size = best.story.connections.len() / 2;
    while size > 0 {
        let mut at = 0;
        while at < best.story.connections.len() {
            let until = (at + size).min(best.story.connections.len());
            if !best.attempt(end, &|story| drop(story.connections.drain(at..until))) {
                at += size;
            }
        }
        size /= 2;
    }
}

fn requests(best: &mut Best<'_>, end: Instant) {
    for at in 0..best.story.connections.len() {
        let mut number = 0;
        while number < best.story.connections[at].requests.len() {
            let alone = best.story.connections[at].requests.len() == 1;
            let drops = |story: &mut Story| {
                story.connections[at].requests.remove(number);
            };
            if alone || !best.attempt(end, &drops) {
                number += 1;
            }
        }
    }
}

fn world(best: &mut Best<'_>, end: Instant) {
    best.attempt(end, &|story| story.events.clear());
    for at in (0..best.story.events.len()).rev() {
        best.attempt(end, &|story| drop(story.events.remove(at)));
    }
    for faults in [Faults::None, Faults::Benign] {
        if best.story.world == Faults::Hostile || faults == Faults::None {
            best.attempt(end, &|story| story.world = faults);
        }
    }
    if best.story.world == Faults::None {
        best.attempt(end, &|story| story.calm.clear());
        return;
    }
    for calm in Calm::ALL {
        if !best.story.calm.contains(&calm) {
            best.attempt(end, &|story| story.calm.push(calm));
        }
    }
}

fn proxy(best: &mut Best<'_>, end: Instant) {
    best.attempt(end, &|story| story.proxy.limits.clear());
    for at in (0..best.story.proxy.limits.len()).rev() {
        best.attempt(end, &|story| {
            story.proxy.limits.remove(at);
        });
    }
    best.attempt(end, &|story| story.proxy.workers = 1);
    best.attempt(end, &|story| story.proxy.forward = false);
    best.attempt(end, &|story| story.proxy.unix = false);
    best.attempt(end, &|story| story.proxy.memory_mb = None);
    best.attempt(end, &|story| story.proxy.descriptors = None);
}

fn origins(best: &mut Best<'_>, end: Instant) {
    for at in (0..best.story.origins.len()).rev() {
        best.attempt(end, &|story| story.origins[at].conduct = Conduct::Good);
        best.attempt(end, &|story| story.origins[at].naming = Naming::Address);
        best.attempt(end, &|story| without_origin(story, at));
    }
}

/// Gives the requests of an origin to the first.
fn without_origin(story: &mut Story, at: usize) {
    if story.origins.len() == 1 {
        return;
    }
    story.origins.remove(at);
    let requests = story.connections.iter_mut().flat_map(|it| &mut it.requests);
    for request in requests {
        request.origin = match request.origin {
            origin if origin == at => 0,
            origin => origin - usize::from(origin > at),
        };
    }
}

type OfConnection = fn(&mut Connection);
type OfRequest = fn(&mut Request);

/// Sizes, waits and manners.
fn details(best: &mut Best<'_>, end: Instant) {
    const CONNECTION: [OfConnection; 4] = [
        |it| it.begins_ms = 0,
        |it| it.pipelined = false,
        |it| it.reader = Reader::Eager,
        |it| it.ending = Ending::Closes,
    ];
    const REQUEST: [OfRequest; 20] = [
        |it| it.breaks = None,
        |it| it.oddity = None,
        |it| it.pause_ms = 0,
        |it| (it.old, it.closes) = (false, false),
        |it| it.body = Body::default(),
        |it| it.body.length = it.body.length.min(1),
        |it| it.body.length /= 2,
        |it| (it.body.expects, it.body.trailers) = (false, false),
        |it| it.body.chunk = None,
        |it| it.answer.wrong = None,
        |it| it.answer.form = Form::Strict,
        |it| (it.answer.length, it.answer.drip) = (it.answer.length.min(1), None),
        |it| it.answer.length /= 2,
        |it| (it.answer.delay_ms, it.answer.drip) = (0, None),
        |it| it.answer.interims = 0,
        |it| (it.answer.old, it.answer.closes) = (false, false),
        |it| it.answer.early = false,
        |it| (it.answer.frame, it.answer.trailers) = (Frame::Length, false),
        |it| it.answer.trailers = false,
        |it| it.answer.delay_ms /= 2,
    ];
    for at in 0..best.story.connections.len() {
        for change in CONNECTION {
            best.attempt(end, &|story| change(&mut story.connections[at]));
        }
        for number in 0..best.story.connections[at].requests.len() {
            for change in REQUEST {
                let change =
                    |story: &mut Story| change(&mut story.connections[at].requests[number]);
                best.attempt(end, &change);
            }
        }
    }
}
