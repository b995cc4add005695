//! Which origin of a route a request goes to.
//!
//! While all origins are well, that is one load of a shared number more than the balance itself.

use millrace_engine::Instant;

use crate::origin::{OriginId, Origins, PickReason, shared_health::SharedHealth};
use crate::snapshot::RouteOrigins;
use millrace_config::Balance;

/// What else counts where some origin is not well.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProbeContext {
    pub(crate) now: Instant,
    /// Whether the request may be tried again after it was sent.
    pub(crate) is_repeatable: bool,
}

/// Picks one of the route's origins, and says whether that one is on trial. If the request failed
/// at one that was `tried`, another is taken where there is one.
pub(crate) fn pick(
    origins: &mut Origins,
    route: &RouteOrigins,
    board: &SharedHealth,
    tried: Option<OriginId>,
    probing: impl FnOnce() -> ProbeContext,
) -> (OriginId, PickReason) {
    let turn = route.picks.get();
    route.picks.set(turn.wrapping_add(1));
    origins.refresh_health(board);
    if origins.all_healthy {
        let first = turn % route.origins.len();
        if tried.is_none() && route.balance == Balance::RoundRobin {
            return (route.origins[first], PickReason::Normal);
        }
        let in_turn = route.origins[first..].iter().chain(&route.origins[..first]).copied();
        let others = in_turn.filter(|&id| Some(id) != tried);
        let picked = balance(origins, others, route.balance);
        return (picked.unwrap_or(route.origins[first]), PickReason::Normal);
    }
    pick_degraded(origins, route, tried, probing(), turn)
}

fn balance(
    origins: &Origins,
    mut in_turn: impl Iterator<Item = OriginId>,
    balance: Balance,
) -> Option<OriginId> {
    match balance {
        Balance::RoundRobin => in_turn.next(),
        Balance::LeastOutstanding => in_turn.min_by_key(|&id| origins.state(id).outstanding),
    }
}

/// Some origin, of this route or another, is not well. One that is to be probed comes first, then
/// those that are well. Where none is, all are asked as if all were: an origin that is taken for
/// dead may answer, a refusal of ours never does.
#[cold]
fn pick_degraded(
    origins: &mut Origins,
    route: &RouteOrigins,
    tried: Option<OriginId>,
    probing: ProbeContext,
    turn: usize,
) -> (OriginId, PickReason) {
    let all = || (0..route.origins.len()).map(|index| (index, route.origins[index]));
    let untried = |id| Some(id) != tried;
    let probe = all().find(|&(index, id)| {
        let may = origins.state(id).health.may_probe(probing.now, probing.is_repeatable);
        may && untried(id) && !route.is_check_failing(index)
    });
    if let Some((_, id)) = probe {
        origins.state_mut(id).health.begin_probe();
        return (id, PickReason::Probe);
    }
    // In turn among those that are left, not among all: the neighbour of one that is left out
    // would get twice its share.
    let choose = |may: &dyn Fn(usize, OriginId) -> bool| {
        let left: Vec<OriginId> =
            all().filter(|&(index, id)| may(index, id)).map(|(_, id)| id).collect();
        let first = turn.checked_rem(left.len())?;
        balance(origins, left[first..].iter().chain(&left[..first]).copied(), route.balance)
    };
    let is_well =
        |index, id| origins.state(id).health.is_healthy() && !route.is_check_failing(index);
    let found = choose(&|index, id| is_well(index, id) && untried(id))
        .or_else(|| choose(&|_, id| untried(id)))
        .or_else(|| choose(&|_, _| true));
    let id = found.expect("a route has an origin");
    let trial = if origins.state(id).health.is_healthy() {
        PickReason::Normal
    } else {
        PickReason::LastResort
    };
    (id, trial)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::origin::ConnectRulesId;
    use millrace_config::Origin;
    use millrace_config::limits::Limits;
    use millrace_splice::Thresholds;
    use std::time::Duration;

    struct Fixture {
        board: SharedHealth,
        origins: Origins,
        route: RouteOrigins,
        limits: Limits,
        now: Instant,
    }

    impl Fixture {
        fn new(count: u16) -> Self {
            let board = SharedHealth::default();
            let mut origins = Origins::new(100, &Thresholds::FIXED);
            let ports = (1..=count).map(|port| Origin::Tcp { host: "a".to_owned(), port });
            let ids = ports
                .map(|origin| origins.intern_configured(ConnectRulesId(0), &origin, &board))
                .collect();
            let limits = Limits::default();
            Self { board, origins, route: RouteOrigins::new(ids), limits, now: Instant::default() }
        }

        /// What another worker knows of the same origins.
        fn another_worker(&self) -> Origins {
            let mut origins = Origins::new(100, &Thresholds::FIXED);
            for port in 1..=self.route.origins.len() as u16 {
                let origin = Origin::Tcp { host: "a".to_owned(), port };
                origins.intern_configured(ConnectRulesId(0), &origin, &self.board);
            }
            origins
        }

        fn pick(&mut self, tried: Option<usize>) -> (usize, PickReason) {
            let tried = tried.map(|index| self.route.origins[index]);
            let probing = || ProbeContext { now: self.now, is_repeatable: true };
            let (id, trial) = pick(&mut self.origins, &self.route, &self.board, tried, probing);
            let index = self.route.origins.iter().position(|&other| other == id);
            (index.expect("one of the route's"), trial)
        }

        fn fail(&mut self, index: usize) {
            let id = self.route.origins[index];
            for _ in 0..self.limits.eject_failures {
                self.origins.record_failure(
                    id,
                    PickReason::Normal,
                    self.now,
                    &self.limits,
                    &self.board,
                );
            }
        }
    }

    #[test]
    fn an_ejected_origin_is_left_out_and_the_others_share_evenly() {
        let mut fixture = Fixture::new(3);
        fixture.fail(1);
        let picks: Vec<_> = (0..6).map(|_| fixture.pick(None).0).collect();
        assert_eq!(picks.iter().filter(|&&index| index == 0).count(), 3);
        assert_eq!(picks.iter().filter(|&&index| index == 2).count(), 3);
    }

    #[test]
    fn one_request_probes_when_the_time_is_over() {
        let mut fixture = Fixture::new(2);
        fixture.fail(0);
        fixture.now = fixture.now + Duration::from_secs(11);
        assert_eq!(fixture.pick(None), (0, PickReason::Probe));
        assert_eq!(fixture.pick(None), (1, PickReason::Normal));
        let id = fixture.route.origins[0];
        assert!(fixture.origins.record_response(id, PickReason::Probe, &fixture.board));
        assert!(fixture.origins.all_healthy);
    }

    #[test]
    fn with_all_ejected_all_are_asked_but_not_the_one_that_just_failed() {
        let mut fixture = Fixture::new(2);
        fixture.fail(0);
        fixture.fail(1);
        let picks: Vec<_> = (0..4).map(|_| fixture.pick(None)).collect();
        assert!(
            picks.contains(&(0, PickReason::LastResort))
                && picks.contains(&(1, PickReason::LastResort))
        );
        assert_eq!(fixture.pick(Some(0)), (1, PickReason::LastResort));
        let mut alone = Fixture::new(1);
        alone.fail(0);
        assert_eq!(alone.pick(Some(0)), (0, PickReason::LastResort));
    }

    #[test]
    fn an_answer_at_one_worker_ends_the_row_of_another() {
        let mut fixture = Fixture::new(1);
        let mut other = fixture.another_worker();
        let (id, now) = (fixture.route.origins[0], fixture.now);
        let rules = fixture.limits.clone();
        assert!(rules.eject_failures > 1);
        for _ in 1..rules.eject_failures {
            assert!(!fixture.origins.record_failure(
                id,
                PickReason::Normal,
                now,
                &rules,
                &fixture.board
            ));
        }
        fixture.origins.publish_pending(now, &rules, &fixture.board);
        std::mem::swap(&mut fixture.origins, &mut other);
        fixture.pick(None);
        assert!(!fixture.origins.all_pristine, "or nobody notes its answer");
        fixture.origins.record_response(id, PickReason::Normal, &fixture.board);
        fixture.origins.publish_pending(now, &rules, &fixture.board);
        assert!(fixture.origins.all_pristine);
        std::mem::swap(&mut fixture.origins, &mut other);
        fixture.pick(None);
        assert!(!fixture.origins.record_failure(
            id,
            PickReason::Normal,
            now,
            &rules,
            &fixture.board
        ));
        assert_eq!(fixture.pick(None), (0, PickReason::Normal));
    }

    #[test]
    fn another_worker_hears_with_its_next_pick() {
        let mut fixture = Fixture::new(2);
        let mut other = fixture.another_worker();
        fixture.fail(0);
        std::mem::swap(&mut fixture.origins, &mut other);
        assert!((0..4).all(|_| fixture.pick(None) == (1, PickReason::Normal)));
    }
}
