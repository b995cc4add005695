//! An origin of the simulated world.
//!
//! In a world that works it plays its scripts in the order in which it accepts. In a hostile one
//! that order means nothing: requests are retried, also at other origins, and connections break
//! before they carry any. It then reads requests wherever they come and answers each as any script
//! does, so that a request that no client sent, or one that may not be repeated and is, shows.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use millrace_event::Instant;
use millrace_sim::{Read, Socket, World};

use super::seat::Seat;
use crate::scenario::{Action, Board, Names, Origin, Play, Script, Subject, next_request};

/// What all origins of a run share.
#[derive(Clone, Default)]
pub(super) struct Common {
    /// The scripts of all of them.
    scripts: Rc<[Script]>,
    /// How often each request came, by method and target.
    pub(super) seen: Rc<RefCell<BTreeMap<(String, String), usize>>>,
}

impl Common {
    pub(super) fn new(origins: &[Origin]) -> Self {
        let scripts = origins.iter().flat_map(scripts_of).cloned().collect();
        Self { scripts, seen: Rc::default() }
    }
}

/// An origin and its connections.
pub(super) struct OriginSeat {
    origin: Origin,
    listener: Option<Socket>,
    names: Names,
    board: Board,
    hostile: bool,
    /// Its scripts begin with requests: they can be picked by what comes.
    picks: bool,
    accepted: usize,
    playing: Vec<Seat>,
    waiting: Vec<Waiting>,
    common: Common,
}

/// A connection on which no request is being answered.
struct Waiting {
    name: String,
    socket: Socket,
    inbox: Vec<u8>,
}

impl OriginSeat {
    pub(super) fn new(
        origin: &Origin,
        listener: Option<Socket>,
        names: &Names,
        board: &Board,
        common: &Common,
        hostile: bool,
    ) -> Self {
        let begins_with_request = |script: &Script| match script.steps.first() {
            Some(step) => is_request(&step.action),
            None => true,
        };
        let picks = hostile && scripts_of(origin).all(begins_with_request);
        Self {
            origin: origin.clone(),
            listener,
            names: names.clone(),
            board: board.clone(),
            hostile,
            picks,
            accepted: 0,
            playing: Vec::new(),
            waiting: Vec::new(),
            common: common.clone(),
        }
    }

    /// Whether every script was played.
    pub(super) fn is_over(&self) -> bool {
        self.hostile
            || (self.accepted >= self.origin.scripts.len()
                && self.playing.iter().all(Seat::is_over))
    }

    /// What it still waits for.
    pub(super) fn state(&self) -> String {
        let open = self.playing.iter().filter(|seat| !seat.is_over());
        let lines: Vec<String> =
            open.map(|seat| format!("{} at line {}", seat.name, seat.play.line())).collect();
        let (accepted, wanted) = (self.accepted, self.origin.scripts.len());
        format!("{}: {accepted} of {wanted} connections; {}", self.origin.name, lines.join(", "))
    }

    pub(super) fn step(&mut self, world: &World) -> Result<Option<Instant>, String> {
        while let Some((socket, _)) = self.listener.and_then(|listener| world.accept(listener)) {
            self.accepted += 1;
            self.begin(world, socket)?;
        }
        let mut look = None;
        for index in (0..self.playing.len()).rev() {
            let again = self.playing[index].step(world)?;
            look = look.into_iter().chain(again).min();
            if self.playing[index].is_over() {
                self.after(world, index)?;
            }
        }
        for index in (0..self.waiting.len()).rev() {
            self.listen(world, index)?;
        }
        Ok(look)
    }

    /// Closes every socket: the world ends.
    pub(super) fn close(&mut self, world: &World) {
        for seat in &mut self.playing {
            seat.close(world);
        }
        for waiting in self.waiting.drain(..) {
            world.close(waiting.socket);
        }
        if let Some(listener) = self.listener.take() {
            world.close(listener);
        }
    }

    fn begin(&mut self, world: &World, socket: Socket) -> Result<(), String> {
        let name = format!("{} connection {}", self.origin.name, self.accepted);
        if self.picks {
            self.waiting.push(Waiting { name, socket, inbox: Vec::new() });
            return Ok(());
        }
        let script = self.origin.scripts.get(self.accepted - 1).or(self.origin.each.as_ref());
        // Where tunnels are retried in a hostile world, the last script serves all that follow.
        let script = script.or(self.origin.scripts.last().filter(|_| self.hostile));
        let script = script.ok_or_else(|| format!("{name}: nobody expected it"))?;
        let play = Play::new(script, &self.names, &self.board, self.hostile);
        self.playing.push(Seat::new(name, socket, play, world));
        Ok(())
    }

    /// A script has ended: its connection stays as it is until the proxy ends it.
    fn after(&mut self, world: &World, index: usize) -> Result<(), String> {
        let Some(socket) = self.playing[index].socket() else { return Ok(()) };
        let seat = &mut self.playing[index];
        let mut inbox = seat.play.inbox().to_vec();
        if self.picks {
            let name = seat.name.clone();
            self.playing.remove(index);
            self.waiting.push(Waiting { name, socket, inbox });
            return Ok(());
        }
        match world.read(socket, 64 * 1024) {
            Read::Bytes(bytes) => inbox.extend(bytes),
            Read::End | Read::Failed(_) => seat.close(world),
            Read::Nothing => {}
        }
        match inbox.is_empty() {
            true => Ok(()),
            false => Err(format!("{}: more came: \"{}\"", seat.name, inbox.escape_ascii())),
        }
    }

    /// Looks for a request on a connection that has none.
    fn listen(&mut self, world: &World, index: usize) -> Result<(), String> {
        let waiting = &mut self.waiting[index];
        let ended = match world.read(waiting.socket, 64 * 1024) {
            Read::Bytes(bytes) => {
                waiting.inbox.extend(bytes);
                false
            }
            Read::End | Read::Failed(_) => true,
            Read::Nothing if waiting.inbox.is_empty() => return Ok(()),
            Read::Nothing => false,
        };
        if let Some((method, target)) = next_request(&waiting.inbox)
            .map_err(|why| format!("{}: {why}", self.waiting[index].name))?
        {
            return self.answer(world, index, method, target);
        }
        if ended {
            world.close(self.waiting.swap_remove(index).socket);
        }
        Ok(())
    }

    /// Answers a request as the scripts do: the first time as the first script that expects it,
    /// the next time as the second, and so on; the last one serves all that follow.
    fn answer(
        &mut self,
        world: &World,
        index: usize,
        method: String,
        target: String,
    ) -> Result<(), String> {
        let answers: Vec<Script> = self
            .common
            .scripts
            .iter()
            .flat_map(|script| self.parts(script, &method, &target))
            .collect();
        let Waiting { name, socket, inbox } = self.waiting.swap_remove(index);
        let mut seen = self.common.seen.borrow_mut();
        let times = seen.entry((method.clone(), target.clone())).or_default();
        let script = answers.get(*times).or(answers.last());
        *times += 1;
        let Some(script) = script else {
            return Err(format!("{name}: nobody expected {method} {target}"));
        };
        let mut play = Play::new(script, &self.names, &self.board, true);
        play.received(&inbox);
        self.playing.push(Seat::new(name, socket, play, world));
        Ok(())
    }

    /// The parts of a script that answer this request, each up to the next request.
    fn parts(&self, script: &Script, method: &str, target: &str) -> Vec<Script> {
        let mut parts = Vec::new();
        let mut part: Option<Script> = None;
        for step in &script.steps {
            if is_request(&step.action) {
                parts.extend(part.take());
                if self.is_for(&step.action, method, target) {
                    part = Some(Script::default());
                }
            }
            if let Some(part) = &mut part {
                part.steps.push(step.clone());
            }
        }
        parts.extend(part);
        parts
    }

    fn is_for(&self, action: &Action, method: &str, target: &str) -> bool {
        match action {
            Action::Message(expected) => match &expected.subject {
                Subject::Request { method: wanted, target: at } => {
                    wanted == method && self.names.fill(at) == target
                }
                Subject::Answer { .. } => false,
            },
            _ => false,
        }
    }
}

fn scripts_of(origin: &Origin) -> impl Iterator<Item = &Script> {
    origin.scripts.iter().chain(&origin.each)
}

fn is_request(action: &Action) -> bool {
    matches!(action, Action::Message(expected)
        if matches!(expected.subject, Subject::Request { .. }))
}
