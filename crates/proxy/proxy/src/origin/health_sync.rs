//! What a worker notes of the health of its origins, and what it tells the other workers of that
//! and hears of them.

use millrace_config::limits::Limits;
use millrace_engine::Instant;

use crate::origin::shared_health::{Board, OriginMark};
use crate::origin::{Change, OriginId, Origins, Trial};

impl Origins {
    /// What all workers know of an origin, if a configuration ever named it.
    #[inline]
    pub(crate) fn mark(&self, id: OriginId) -> Option<&OriginMark> {
        self.known(id).mark.as_deref()
    }

    /// Takes over what changed on the board, if anything did.
    pub(crate) fn hear(&mut self, board: &Board) {
        if board.version() != self.version {
            self.listen_anew(board);
        }
    }

    /// The next pick listens to the board, whatever it heard of it before.
    pub(super) fn listen_again(&mut self) {
        self.version = self.version.wrapping_sub(1);
    }

    #[cold]
    fn listen_anew(&mut self, board: &Board) {
        self.version = board.version();
        for known in self.known.iter_mut().flatten() {
            if let Some(mark) = &known.mark {
                let told = mark.read();
                known.health.hear(told.failures, told.ejection);
            }
        }
        self.all_are_well = self.known.iter().flatten().all(|known| known.health.is_well())
            && !self.checks.iter().any(|check| check.fails());
        self.look_for_spots();
    }

    fn look_for_spots(&mut self) {
        self.all_are_spotless = self.known.iter().flatten().all(|known| known.health.is_spotless());
    }

    /// A request failed by the fault of a configured origin. Returns whether that ejected it.
    pub(crate) fn note_failure(
        &mut self,
        id: OriginId,
        trial: Trial,
        now: Instant,
        limits: &Limits,
        board: &Board,
    ) -> bool {
        let change = self.known_mut(id).health.note_failure(trial, now, limits);
        self.all_are_spotless = false;
        self.tell(id, change, board) && matches!(change, Some(Change::Ejected(_)))
    }

    /// A request was answered by an origin. Returns whether that readmitted it.
    pub(crate) fn note_answer(&mut self, id: OriginId, trial: Trial, board: &Board) -> bool {
        let change = self.known_mut(id).health.note_answer(trial);
        self.tell(id, change, board)
    }

    /// A change is told at once, the rest by and by: see [`Origins::tell_news`].
    fn tell(&mut self, id: OriginId, change: Option<Change>, board: &Board) -> bool {
        let Some(mark) = &self.known(id).mark else { return false };
        match change {
            Some(change) => {
                board.tell_change(mark, change);
                self.hear(board);
            }
            None if !self.news.contains(&id) => self.news.push(id),
            None => {}
        }
        change.is_some()
    }

    /// Whether there is something to tell by and by.
    pub(crate) fn has_news(&self) -> bool {
        !self.news.is_empty()
    }

    /// Tells the other workers of failures that ejected nobody, and hears of theirs. Returns how
    /// many origins all these together ejected.
    pub(crate) fn tell_news(&mut self, now: Instant, limits: &Limits, board: &Board) -> u64 {
        let mut ejected = 0;
        for id in std::mem::take(&mut self.news) {
            // It may have been forgotten since.
            let Some(known) = self.known[id.0 as usize].as_mut() else { continue };
            let Some(mark) = &known.mark else { continue };
            let was_well = known.health.is_well();
            let told = board.tell_news(mark, known.health.take_news(), now, limits);
            known.health.hear(told.failures, told.ejection);
            ejected += u64::from(was_well && !known.health.is_well());
        }
        self.hear(board);
        self.look_for_spots();
        ejected
    }
}
