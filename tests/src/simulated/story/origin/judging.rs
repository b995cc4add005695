//! What an origin makes of the bytes that come, and of their end.

use millrace_sim::World;

use super::super::ledger::Moment;
use super::super::plan::{Conduct, Form, How, Oddity};
use super::super::reading::{Part, shown};
use super::super::sending::Out;
use super::super::words;
use super::{At, Line};
use crate::strict::Message;

impl Line {
    pub(super) fn judge(&mut self, world: &World) {
        loop {
            if self.spoilt {
                let rest = self.reading.rest().len();
                self.reading.take(rest);
                return;
            }
            if matches!(self.at, At::Idle) && self.answers == 0 && self.begins_tunnel(world) {
                return;
            }
            if matches!(self.at, At::Request(_)) && self.whole {
                // Requests are never sent ahead to an origin. What still goes behind the answer at
                // hand is not awaited.
                if !self.reading.is_between() && !self.strays {
                    let words = format!("{} before an answer", shown(self.reading.rest()));
                    self.fail(world, "unasked", words);
                }
                return;
            }
            match self.reading.next(None) {
                Ok(Some(Part::Head(message))) => self.head(world, &message),
                Ok(Some(Part::Body(bytes))) => self.body(world, &bytes),
                Ok(Some(Part::End)) => self.end_of_request(world),
                Ok(None) => return,
                Err(why) => return self.fail(world, "doubtful", why),
            }
        }
    }

    /// Whether a tunnel begins, or may begin, with what is there.
    fn begins_tunnel(&mut self, world: &World) -> bool {
        let bytes = self.reading.rest();
        let begin = b"Tunnel ";
        let common = bytes.len().min(begin.len());
        if common == 0 || bytes[..common] != begin[..common] {
            return false;
        }
        let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else { return true };
        let line = String::from_utf8_lossy(&self.reading.take(end + 1)).into_owned();
        let id = line.trim_end().split(' ').nth(1).and_then(|id| id.parse().ok()).unwrap_or(0);
        let target = format!("/{id}");
        if let Some(request) = self.ledger.arrive(world, self.number, (id, "CONNECT", &target)) {
            self.enter_tunnel(request);
            self.judge(world);
        }
        true
    }

    fn head(&mut self, world: &World, message: &Message) {
        let id = message.fields.iter().find(|field| field.is("x-id"));
        let id = id.and_then(|field| String::from_utf8_lossy(&field.value).parse().ok());
        let id = id.unwrap_or(0);
        let line = (id, message.method(), message.target());
        let Some(request) = self.ledger.arrive(world, self.number, line) else {
            self.spoilt = true;
            return;
        };
        self.ledger.touch(id, Moment::now(world));
        if self.ruined {
            let words = format!("request {id} on a connection with a malformed answer");
            return self.fail(world, "stale-connection", words);
        }
        if self.overtaken {
            let words =
                format!("request {id} behind a response that was before the end of its body");
            return self.fail(world, "stale-connection", words);
        }
        if self.strayed.is_some_and(|moment| self.is_long_ago(world, moment)) {
            let words = format!("request {id} on a connection with bytes that nobody asked for");
            return self.fail(world, "stale-connection", words);
        }
        if let Some(finished) = self.finished {
            self.spoilt = true;
            if self.is_long_ago(world, finished) {
                let words = format!("request {id} on a connection whose end was long announced");
                self.fail(world, "stale-connection", words);
            }
            return;
        }
        // It was on its way. Nobody answers behind what may look like an answer.
        if self.strays && matches!(self.conduct, Conduct::StraysIdle(_)) {
            self.spoilt = true;
            return;
        }
        (self.got, self.whole, self.answered) = (0, false, false);
        let length = if request.method.is_tunnel() { 0 } else { request.body.length };
        self.want = words::upward(id, length);
        if request.body.expects && !request.answer.early {
            self.sending.add(Out::Bytes(words::interim(id, 100, Form::Strict)));
        }
        let early = request.answer.early;
        self.at = At::Request(Box::new(request));
        if early {
            self.answer();
        }
    }

    /// Whether the proxy has long taken in what reached it at that moment.
    fn is_long_ago(&self, world: &World, moment: Moment) -> bool {
        let within = self.ledger.waits().heard;
        within.is_some_and(|within| moment.until(world, within) < world.now())
    }

    fn body(&mut self, world: &World, bytes: &[u8]) {
        let (id, odd) = match &self.at {
            At::Request(request) | At::Tunnel(request) => {
                (request.id, matches!(request.oddity, Some(Oddity::Body(_))))
            }
            At::Idle => return,
        };
        let end = self.got + bytes.len();
        if !odd && self.want.get(self.got..end) != Some(bytes) {
            let words = format!(
                "wrong bytes from {} on of {} of request {id}: {}",
                self.got,
                self.want.len(),
                shown(bytes)
            );
            self.fail(world, "wrong-bytes", words);
        }
        self.got = end;
    }

    fn end_of_request(&mut self, world: &World) {
        let At::Request(request) = &self.at else { return };
        let (id, early) = (request.id, request.answer.early);
        if matches!(request.oddity, Some(Oddity::Body(_))) {
            let words = format!("the malformed body of request {id} was forwarded whole");
            return self.fail(world, "smuggled", words);
        }
        if self.got < self.want.len() {
            let words = format!("{} of {} bytes look whole", self.got, self.want.len());
            return self.fail(world, "looks-whole", format!("request {id}: {words}"));
        }
        self.whole = true;
        let began = self.began.take();
        self.overtaken = began.is_some_and(|began| self.is_long_ago(world, began));
        if !early {
            self.answer();
        }
        self.next(world);
    }

    /// The stream from the proxy has ended, or broken.
    pub(super) fn ends(&mut self, world: &World, broken: bool) {
        if broken {
            self.ledger.met("origin: sees its connection break");
        }
        if let At::Tunnel(request) = &self.at {
            let breaks = request.breaks.map(|breaks| breaks.how);
            // Before the first byte there may have been no tunnel: its client left too early.
            let may = matches!(breaks, Some(How::Finish | How::Close | How::Stop))
                || self.got == 0
                || self.ledger.story().proxy.unix;
            if !broken && !may && self.got < self.want.len() {
                let (id, got, want) = (request.id, self.got, self.want.len());
                let words = format!("{got} of {want} bytes of tunnel {id} end in order");
                return self.fail(world, "looks-whole", words);
            }
            if !broken {
                // The other direction goes on.
                self.ended = true;
                return;
            }
        }
        self.close(world);
    }
}
