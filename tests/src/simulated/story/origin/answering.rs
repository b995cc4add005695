//! What an origin says to a request, and what becomes of the connection then.

use millrace_sim::World;

use super::super::classes;
use super::super::ledger::Moment;
use super::super::plan::{Break, Frame, Method, Request, Wrong};
use super::super::sending::Out;
use super::super::words;
use super::{At, Line};

impl Line {
    /// Plans what is said to the request at hand.
    pub(super) fn answer(&mut self) {
        let At::Request(request) = &self.at else { return };
        let request = (**request).clone();
        let answer = &request.answer;
        classes::meet_answer(&self.ledger, &request);
        if answer.delay_ms > 0 {
            self.sending.add(Out::Pause(answer.delay_ms));
        }
        let floods = matches!(answer.wrong, Some(Wrong::Floods));
        for count in 0..if floods { 100 } else { answer.interims } {
            let status = if floods { 103 } else { [103, 102, 100][count as usize % 3] };
            self.sending.add(Out::Bytes(words::interim(request.id, status, answer.form)));
        }
        let mut bytes = words::answer(&request);
        if let Some(Wrong::Goes(index)) = answer.wrong {
            bytes.extend_from_slice(words::STRAYS[index].as_bytes());
            self.strays = true;
        }
        match (breaks(&request), answer.drip) {
            (None, Some((size, ms))) => self.sending.add(Out::Drip(bytes, size, ms)),
            (breaks, _) if request.method != Method::Upgrade => {
                self.sending.add_broken(bytes, breaks);
            }
            _ => self.sending.add(Out::Bytes(bytes)),
        }
        let bad = matches!(
            answer.wrong,
            Some(Wrong::Head(_) | Wrong::Chunks(_) | Wrong::Switches | Wrong::Floods)
        );
        self.sending.add(Out::Mark);
        let upgrades = request.method == Method::Upgrade && answer.status == 101;
        if (answer.closes || answer.frame == Frame::UntilClose) && !bad && !upgrades {
            self.sending.add(Out::Finish);
            self.ledger.met("answer: closes behind it");
        }
    }

    /// On to the next request once this one is whole, and its answer.
    pub(super) fn next(&mut self, world: &World) {
        if !self.answered || !self.whole {
            return;
        }
        let At::Request(request) = &self.at else { return };
        let request = (**request).clone();
        self.answers += 1;
        (self.last, self.moved) = (request.id, Moment::now(world));
        self.at = At::Idle;
        match request.answer.wrong {
            Some(Wrong::Head(_) | Wrong::Chunks(_) | Wrong::Switches | Wrong::Floods) => {
                self.ruined = true;
            }
            _ if request.method == Method::Upgrade && request.answer.status == 101 => {
                self.enter_tunnel(request);
                self.judge(world);
            }
            _ => {}
        }
    }

    pub(super) fn enter_tunnel(&mut self, request: Request) {
        self.reading.raw();
        let bytes = words::downward(request.id, request.answer.length);
        (self.got, self.want) = (0, words::upward(request.id, request.body.length));
        if request.answer.delay_ms > 0 {
            self.sending.add(Out::Pause(request.answer.delay_ms));
        }
        match (breaks(&request), request.answer.drip) {
            (None, Some((size, ms))) => self.sending.add(Out::Drip(bytes, size, ms)),
            (breaks, _) => self.sending.add_broken(bytes, breaks),
        }
        self.sending.add(Out::Finish);
        self.ledger.met("origin: in a tunnel");
        self.at = At::Tunnel(Box::new(request));
    }
}

/// Where the answer to a request, or what goes down its tunnel, is broken off.
fn breaks(request: &Request) -> Option<Break> {
    match request.answer.wrong {
        Some(Wrong::Breaks(breaks)) => Some(breaks),
        _ => None,
    }
}
