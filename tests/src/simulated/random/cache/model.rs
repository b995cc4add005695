//! The responses of the origin, the requests of clients, and the checks whether a client may get a
//! response.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Deref;
use std::rc::Rc;
use std::time::Duration;

use millrace_engine::Instant;
use millrace_sim::{Faults, World};

use super::super::findings::Findings;
use super::super::model::Moment;
use super::super::plan::{BodyFraming, Break, BreakKind};
use super::super::wire::chunked;
use super::{CacheRequest, CacheScenario, CachedResponsePlan};
use crate::simulated::TlsFault;

/// The model of one run. Clones share their state.
#[derive(Clone)]
pub(super) struct CacheModel {
    findings: Findings,
    state: Rc<RefCell<CacheState>>,
}

impl Deref for CacheModel {
    type Target = Findings;

    fn deref(&self) -> &Findings {
        &self.findings
    }
}

struct CacheState {
    scenario: Rc<CacheScenario>,
    records: Vec<ResponseRecord>,
    requests_sent: BTreeMap<u32, RequestRecord>,
    /// For each URL, when the origin responded to the last POST whose success a client has seen.
    /// Earlier responses are invalid from then on.
    invalidated_at: Vec<Option<Instant>>,
    /// When the process was last killed.
    killed_at: Option<Instant>,
}

/// A response of the origin. Its serial number is its index, from 1.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResponseRecord {
    pub(super) plan: CachedResponsePlan,
    /// The request that caused it.
    pub(super) request_id: u32,
    pub(super) url: usize,
    pub(super) language: u8,
    /// When its header was sent or last validated; `None`: it was not sent yet.
    validated_at: Option<Moment>,
    /// How long the response may be used after `validated_at`.
    usable_for: Duration,
    /// Whether the bytes missing after a break were sent later.
    completed: bool,
    /// Whether the end of the stream is not announced, although the origin uses TLS.
    ends_unannounced: bool,
}

impl ResponseRecord {
    /// Returns whether the response is cut in a way that every recipient detects.
    pub(super) fn is_cut(&self) -> bool {
        let in_order = |how| matches!(how, BreakKind::Finish | BreakKind::Close);
        let is_seen = |how| !(self.ends_by_close() && in_order(how));
        let is_seen = |breaks: Break| self.ends_unannounced || is_seen(breaks.how);
        let ends_cut = self.ends_unannounced && self.ends_by_close();
        !self.completed && (ends_cut || self.plan.breaks.is_some_and(is_seen))
    }

    /// Returns whether a part of it may look complete.
    pub(super) fn may_look_short(&self) -> bool {
        !self.completed && self.plan.breaks.is_some() && !self.is_cut()
    }

    /// Returns how many bytes of its body were sent before the break, unless a reset may have
    /// discarded some.
    pub(super) fn bytes_before_break(&self) -> Option<usize> {
        let Break { at, how } = self.plan.breaks.filter(|_| !self.completed)?;
        let length = self.plan.length;
        let sent = match self.plan.frame {
            BodyFraming::Length | BodyFraming::UntilClose => at % length.max(1),
            BodyFraming::Chunks(size) => {
                // Chunk lines contain no x, so counting x counts payload bytes.
                let coded = chunked(&vec![b'x'; length], size);
                coded[..at % coded.len()].iter().filter(|byte| **byte == b'x').count()
            }
        };
        (how != BreakKind::Reset).then_some(sent)
    }

    fn ends_by_close(&self) -> bool {
        self.plan.frame == BodyFraming::UntilClose
    }
}

/// A request that a client has sent.
#[derive(Clone, Copy, Debug)]
struct RequestRecord {
    at: Moment,
    /// Responses from before this time are invalid.
    valid_from: Option<Instant>,
    range: Option<(usize, usize)>,
}

impl CacheScenario {
    /// Returns whether the origin uses TLS and does not announce the end of its streams.
    pub(super) fn ends_unannounced(&self) -> bool {
        let fault = self.origin_tls.and_then(|plan| plan.fault);
        fault == Some(TlsFault::UnannouncedEnd)
    }
}

impl CacheModel {
    pub(super) fn new(scenario: &CacheScenario) -> Self {
        let state = CacheState {
            scenario: Rc::new(scenario.clone()),
            records: Vec::new(),
            requests_sent: BTreeMap::new(),
            invalidated_at: vec![None; scenario.responses.len()],
            killed_at: None,
        };
        Self { findings: Findings::default(), state: Rc::new(RefCell::new(state)) }
    }

    pub(super) fn scenario(&self) -> Rc<CacheScenario> {
        self.state.borrow().scenario.clone()
    }

    pub(super) fn is_hostile(&self) -> bool {
        self.state.borrow().scenario.world == Faults::Hostile
    }

    /// Records that the process is killed. Invalidations that are not yet on disk are lost, or all
    /// of them if `loses_all`.
    pub(super) fn kill(&self, world: &World, loses_all: bool) {
        let state = &mut *self.state.borrow_mut();
        let now = world.now();
        state.killed_at = Some(now);
        for invalidated_at in &mut state.invalidated_at {
            invalidated_at.take_if(|at| loses_all || *at + SYNC_TIME > now);
        }
    }

    /// Returns whether the process was killed since a time.
    pub(super) fn was_killed(&self, since: Instant) -> bool {
        self.state.borrow().killed_at.is_some_and(|at| at >= since)
    }

    /// Returns whether the process that fetched the response was killed since.
    pub(super) fn outlived_process(&self, record: &ResponseRecord) -> bool {
        record.validated_at.is_some_and(|validated_at| self.was_killed(validated_at.at))
    }

    /// Records that a client begins to send a request.
    pub(super) fn record_request(&self, world: &World, request: &CacheRequest) {
        let state = &mut *self.state.borrow_mut();
        let valid_from = state.invalidated_at[request.url];
        let requests_sent =
            RequestRecord { at: Moment::now(world), valid_from, range: request.range };
        state.requests_sent.insert(request.id, requests_sent);
    }

    /// Returns the range of a request; `None`: the whole response.
    pub(super) fn range_of(&self, request_id: u32) -> Option<(usize, usize)> {
        self.state.borrow().requests_sent.get(&request_id)?.range
    }

    /// Records a response of the origin. Returns its serial number.
    pub(super) fn record_response(
        &self,
        plan: CachedResponsePlan,
        request_id: u32,
        url: usize,
        language: u8,
    ) -> usize {
        let state = &mut *self.state.borrow_mut();
        let usable_for =
            Duration::from_secs(plan.cache_control.fresh_s + plan.cache_control.stale_s);
        state.records.push(ResponseRecord {
            plan,
            request_id,
            url,
            language,
            validated_at: None,
            usable_for,
            completed: false,
            ends_unannounced: state.scenario.ends_unannounced(),
        });
        state.records.len()
    }

    /// Returns the number of responses for a URL, without 304s.
    pub(super) fn response_count(&self, url: usize) -> usize {
        self.state.borrow().records.iter().filter(|record| record.url == url).count()
    }

    pub(super) fn record(&self, serial: usize) -> Option<ResponseRecord> {
        self.state.borrow().records.get(serial.checked_sub(1)?).copied()
    }

    /// Records that the header of a response was sent, or the header of a 304 with `new_plan` that
    /// validates the response.
    pub(super) fn record_validation(
        &self,
        world: &World,
        serial: usize,
        new_plan: Option<CachedResponsePlan>,
    ) {
        let state = &mut *self.state.borrow_mut();
        let record = &mut state.records[serial - 1];
        if let Some(plan) = new_plan {
            let usable_for =
                Duration::from_secs(plan.cache_control.fresh_s + plan.cache_control.stale_s);
            // The 304 may have been lost: then the earlier lifetime applies.
            record.usable_for = record.usable_for.max(usable_for);
        }
        record.validated_at = Some(Moment::now(world));
    }

    /// Records that the origin sends the missing bytes of a response.
    pub(super) fn complete(&self, serial: usize) {
        self.state.borrow_mut().records[serial - 1].completed = true;
    }

    /// Records that a client has seen the success of a POST, which invalidates earlier responses.
    pub(super) fn record_invalidation(&self, url: usize, serial: usize) {
        let state = &mut *self.state.borrow_mut();
        let at = state.records[serial - 1].validated_at.map(|moment| moment.at);
        let invalidated_at = &mut state.invalidated_at[url];
        *invalidated_at = (*invalidated_at).max(at);
    }

    /// Checks whether a client may get the response with this serial number.
    pub(super) fn check(
        &self,
        world: &World,
        request: &CacheRequest,
        serial: usize,
    ) -> Result<ResponseRecord, Violation> {
        let state = &*self.state.borrow();
        let requests_sent = state.requests_sent[&request.id];
        let Some(record) = serial.checked_sub(1).and_then(|at| state.records.get(at)) else {
            return Err(("made-up", format!("response {serial}, which the origin never sent")));
        };
        let details = |what: &str| format!("request {} gets response {serial}, {what}", request.id);
        let Some(validated_at) = record.validated_at else {
            return Err(("made-up", details("which was not sent yet")));
        };
        if record.url != request.url {
            return Err(("mixed", details(&format!("which is of /u{}", record.url))));
        }
        if record.request_id == request.id {
            return Ok(*record);
        }
        if record.plan.varies && record.language != request.language {
            return Err(("variant", details("which is in another language")));
        }
        if record.plan.cache_control.private {
            return Err(("private", details(&format!("which is for {} alone", record.request_id))));
        }
        if record.plan.form.is_ambiguous() {
            return Err(("ambiguous", details("which must not be stored")));
        }
        if requests_sent.valid_from.is_some_and(|from| validated_at.at < from) {
            return Err(("invalid", details("which was invalidated before")));
        }
        if request.cache_control == "no-cache" && validated_at.at < requests_sent.at.at {
            return Err(("unvalidated", details("which was not validated")));
        }
        let accepts_stale = request.cache_control == "max-stale";
        let until = validated_at.until(world, record.usable_for + SLACK);
        if !accepts_stale && until < requests_sent.at.at {
            return Err(("stale", details(&format!("which was usable until {until:?}"))));
        }
        Ok(*record)
    }
}

/// The kind of a failure, and a description.
pub(super) type Violation = (&'static str, String);

/// An invalidation of this age is on disk.
const SYNC_TIME: Duration = Duration::from_secs(10);

/// Tolerance of freshness checks: ages are rounded to seconds twice, and a response takes some time
/// to arrive.
const SLACK: Duration = Duration::from_secs(4);
