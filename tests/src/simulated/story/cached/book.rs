//! What the origin has said and what clients have asked, and whether an answer may be the one to a
//! request.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Deref;
use std::rc::Rc;
use std::time::Duration;

use millrace_engine::Instant;
use millrace_sim::{Faults, World};

use super::super::ledger::Moment;
use super::super::plan::{Break, Frame, How};
use super::super::tally::Tally;
use super::super::words::chunked;
use super::{Ask, CachedStory, Said};

/// The book of one run; clones are the same book.
#[derive(Clone)]
pub(super) struct Book {
    tally: Tally,
    pages: Rc<RefCell<Pages>>,
}

impl Deref for Book {
    type Target = Tally;

    fn deref(&self) -> &Tally {
        &self.tally
    }
}

struct Pages {
    story: Rc<CachedStory>,
    records: Vec<Record>,
    asked: BTreeMap<u32, Asked>,
    /// By URL: when the origin said that a change had succeeded of which a client knows.
    changed: Vec<Option<Instant>>,
    /// When the process was killed for the last time.
    killed: Option<Instant>,
}

/// An answer of the origin's; its serial number is its place, from 1.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    pub(super) said: Said,
    /// The request that it answers.
    pub(super) asker: u32,
    pub(super) url: usize,
    pub(super) language: u8,
    /// When it was sent, or last said to hold; `None`: not yet.
    touched: Option<Moment>,
    /// For how long it may be used from then on.
    lasts: Duration,
    /// What was missing of it was given later.
    completed: bool,
}

impl Record {
    /// Whether it is broken off so that everybody can see it.
    pub(super) fn is_cut(&self) -> bool {
        let in_order = |how| matches!(how, How::Finish | How::Close);
        let is_seen = |how| !(self.ends_by_close() && in_order(how));
        !self.completed && self.said.breaks.is_some_and(|breaks| is_seen(breaks.how))
    }

    /// Whether what came of it may be less than it is, and look whole.
    pub(super) fn may_look_short(&self) -> bool {
        !self.completed && self.said.breaks.is_some() && !self.is_cut()
    }

    /// How much of its body came before it was broken off, where that does not hang on what a reset
    /// overtook.
    pub(super) fn came(&self) -> Option<usize> {
        let Break { at, how } = self.said.breaks.filter(|_| !self.completed)?;
        let length = self.said.length;
        let came = match self.said.frame {
            Frame::Length | Frame::UntilClose => at % length.max(1),
            Frame::Chunks(size) => {
                // An x is in no line of a chunk.
                let coded = chunked(&vec![b'x'; length], size);
                coded[..at % coded.len()].iter().filter(|byte| **byte == b'x').count()
            }
        };
        (how != How::Reset).then_some(came)
    }

    fn ends_by_close(&self) -> bool {
        self.said.frame == Frame::UntilClose
    }
}

/// A request that a client has sent.
#[derive(Clone, Copy, Debug)]
struct Asked {
    at: Moment,
    /// What was said before is invalid.
    valid_from: Option<Instant>,
    range: Option<(usize, usize)>,
}

impl Book {
    pub(super) fn new(story: &CachedStory) -> Self {
        let pages = Pages {
            story: Rc::new(story.clone()),
            records: Vec::new(),
            asked: BTreeMap::new(),
            changed: vec![None; story.says.len()],
            killed: None,
        };
        Self { tally: Tally::default(), pages: Rc::new(RefCell::new(pages)) }
    }

    pub(super) fn story(&self) -> Rc<CachedStory> {
        self.pages.borrow().story.clone()
    }

    pub(super) fn is_hostile(&self) -> bool {
        self.pages.borrow().story.world == Faults::Hostile
    }

    /// The process is killed: what it had not written down yet of changes is lost; or what was not
    /// synced, if `loses_all`.
    pub(super) fn kill(&self, world: &World, loses_all: bool) {
        let pages = &mut *self.pages.borrow_mut();
        let now = world.now();
        pages.killed = Some(now);
        for changed in &mut pages.changed {
            changed.take_if(|at| loses_all || *at + WRITTEN_DOWN > now);
        }
    }

    /// Whether the process was killed since a time.
    pub(super) fn was_killed(&self, since: Instant) -> bool {
        self.pages.borrow().killed.is_some_and(|at| at >= since)
    }

    /// Whether the process that fetched it was killed since.
    pub(super) fn outlived_process(&self, record: &Record) -> bool {
        record.touched.is_some_and(|touched| self.was_killed(touched.at))
    }

    /// A client begins to send a request.
    pub(super) fn ask(&self, world: &World, ask: &Ask) {
        let pages = &mut *self.pages.borrow_mut();
        let valid_from = pages.changed[ask.url];
        let asked = Asked { at: Moment::now(world), valid_from, range: ask.range };
        pages.asked.insert(ask.id, asked);
    }

    /// The range that a request asks for; `None`: all of it.
    pub(super) fn range_of(&self, asker: u32) -> Option<(usize, usize)> {
        self.pages.borrow().asked.get(&asker)?.range
    }

    /// The origin answers: gives the serial number.
    pub(super) fn answer(&self, said: Said, asker: u32, url: usize, language: u8) -> usize {
        let pages = &mut *self.pages.borrow_mut();
        let lasts = Duration::from_secs(said.control.fresh_s + said.control.spare_s);
        let (touched, completed) = (None, false);
        let record = Record { said, asker, url, language, touched, lasts, completed };
        pages.records.push(record);
        pages.records.len()
    }

    /// How many requests for a URL were answered, those with 304 not counted.
    pub(super) fn answers(&self, url: usize) -> usize {
        self.pages.borrow().records.iter().filter(|record| record.url == url).count()
    }

    pub(super) fn record(&self, serial: usize) -> Option<Record> {
        self.pages.borrow().records.get(serial.checked_sub(1)?).copied()
    }

    /// The head of an answer went out, or, with what it `says` of it, a 304 that says that it holds.
    pub(super) fn touch(&self, world: &World, serial: usize, says: Option<Said>) {
        let pages = &mut *self.pages.borrow_mut();
        let record = &mut pages.records[serial - 1];
        if let Some(said) = says {
            let lasts = Duration::from_secs(said.control.fresh_s + said.control.spare_s);
            // It may not have come: then what was said before counts.
            record.lasts = record.lasts.max(lasts);
        }
        record.touched = Some(Moment::now(world));
    }

    /// The origin gives what is missing of an answer.
    pub(super) fn complete(&self, serial: usize) {
        self.pages.borrow_mut().records[serial - 1].completed = true;
    }

    /// A client knows that a change has succeeded.
    pub(super) fn changed(&self, url: usize, serial: usize) {
        let pages = &mut *self.pages.borrow_mut();
        let at = pages.records[serial - 1].touched.map(|moment| moment.at);
        let changed = &mut pages.changed[url];
        *changed = (*changed).max(at);
    }

    /// Judges that a client gets the answer of this serial number.
    pub(super) fn judge(&self, world: &World, ask: &Ask, serial: usize) -> Result<Record, Wrong> {
        let pages = &*self.pages.borrow();
        let asked = pages.asked[&ask.id];
        let Some(record) = serial.checked_sub(1).and_then(|at| pages.records.get(at)) else {
            return Err(("made-up", format!("an answer {serial} that nobody gave")));
        };
        let words = |what: &str| format!("request {} gets answer {serial}, {what}", ask.id);
        let Some(touched) = record.touched else {
            return Err(("made-up", words("which was not sent yet")));
        };
        if record.url != ask.url {
            return Err(("mixed", words(&format!("which is of /u{}", record.url))));
        }
        if record.asker == ask.id {
            return Ok(*record);
        }
        if record.said.varies && record.language != ask.language {
            return Err(("variant", words("which is in another language")));
        }
        if record.said.control.own {
            return Err(("private", words(&format!("which is for {} alone", record.asker))));
        }
        if record.said.form.is_ambiguous() {
            return Err(("ambiguous", words("which must not be stored")));
        }
        if asked.valid_from.is_some_and(|from| touched.at < from) {
            return Err(("invalid", words("which was made invalid before")));
        }
        if ask.control == "no-cache" && touched.at < asked.at.at {
            return Err(("unvalidated", words("which was to be validated")));
        }
        let bears_stale = ask.control == "max-stale";
        let until = touched.until(world, record.lasts + SLACK);
        if !bears_stale && until < asked.at.at {
            return Err(("stale", words(&format!("which was good until {until:?}"))));
        }
        Ok(*record)
    }
}

/// A kind of failure, and what was seen.
pub(super) type Wrong = (&'static str, String);

/// A change that succeeded so long ago is known to the disk.
const WRITTEN_DOWN: Duration = Duration::from_secs(10);

/// Ages are counted in whole seconds, two times; and an answer is under way for a while.
const SLACK: Duration = Duration::from_secs(4);
