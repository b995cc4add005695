//! Picks the origin of a route for a request.
//!
//! While all origins are healthy, a pick checks their health by one load of a shared number.

use millrace_engine::Instant;

use crate::origin::{OriginId, Origins, PickReason, shared_health::SharedHealth};
use crate::snapshot::RouteOrigins;
use millrace_config::Balance;

/// The facts about a request that decide whether it may probe an origin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProbeContext {
    pub(crate) now: Instant,
    /// Whether the request may be sent again if it fails.
    pub(crate) is_repeatable: bool,
}

/// Picks one of the route's origins, and returns it with the reason. `failed` is the origin at
/// which the previous try of the request failed; another one is picked if the route has one.
/// `context` is called only if some origin is not healthy.
pub(crate) fn pick(
    origins: &mut Origins,
    route: &RouteOrigins,
    shared_health: &SharedHealth,
    failed: Option<OriginId>,
    context: impl FnOnce() -> ProbeContext,
) -> (OriginId, PickReason) {
    let turn = route.picks.get();
    route.picks.set(turn.wrapping_add(1));
    origins.refresh_health(shared_health);
    if origins.all_healthy {
        let first = turn % route.origins.len();
        if failed.is_none() && route.balance == Balance::RoundRobin {
            return (route.origins[first], PickReason::Normal);
        }
        let in_turn = route.origins[first..].iter().chain(&route.origins[..first]).copied();
        let others = in_turn.filter(|&id| Some(id) != failed);
        let picked = balance(origins, others, route.balance);
        return (picked.unwrap_or(route.origins[first]), PickReason::Normal);
    }
    pick_degraded(origins, route, failed, context(), turn)
}

/// Returns one of the candidates by the balance of the route. `in_turn` yields them in the order of
/// the round robin.
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

/// Picks an origin while some origin, of this route or another, is not healthy. An origin that is
/// due for a probe comes first, then the healthy ones. If none is healthy, all are treated alike:
/// an ejected origin may still respond, which serves the client better than a refusal.
#[cold]
fn pick_degraded(
    origins: &mut Origins,
    route: &RouteOrigins,
    failed: Option<OriginId>,
    context: ProbeContext,
    turn: usize,
) -> (OriginId, PickReason) {
    let all = || (0..route.origins.len()).map(|index| (index, route.origins[index]));
    let not_failed = |id| Some(id) != failed;
    let probe = all().find(|&(index, id)| {
        let may_probe = origins.state(id).health.may_probe(context.now, context.is_repeatable);
        may_probe && not_failed(id) && !route.is_check_failing(index)
    });
    if let Some((_, id)) = probe {
        origins.state_mut(id).health.begin_probe();
        return (id, PickReason::Probe);
    }
    // The round robin runs over the remaining origins only. If it ran over all origins, the
    // neighbour of an origin that is left out would get twice its share.
    let choose = |is_candidate: &dyn Fn(usize, OriginId) -> bool| {
        let candidates: Vec<OriginId> =
            all().filter(|&(index, id)| is_candidate(index, id)).map(|(_, id)| id).collect();
        let first = turn.checked_rem(candidates.len())?;
        balance(
            origins,
            candidates[first..].iter().chain(&candidates[..first]).copied(),
            route.balance,
        )
    };
    let is_healthy =
        |index, id| origins.state(id).health.is_healthy() && !route.is_check_failing(index);
    let found = choose(&|index, id| is_healthy(index, id) && not_failed(id))
        .or_else(|| choose(&|_, id| not_failed(id)))
        .or_else(|| choose(&|_, _| true));
    let id = found.expect("a route has an origin");
    let reason = if origins.state(id).health.is_healthy() {
        PickReason::Normal
    } else {
        PickReason::LastResort
    };
    (id, reason)
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
        shared_health: SharedHealth,
        origins: Origins,
        route: RouteOrigins,
        limits: Limits,
        now: Instant,
    }

    impl Fixture {
        fn new(count: u16) -> Self {
            let shared_health = SharedHealth::default();
            let mut origins = Origins::new(100, &Thresholds::FIXED);
            let ports =
                (1..=count).map(|port| Origin::Tcp { host: "a".to_owned(), port, tls: false });
            let ids = ports
                .map(|origin| origins.intern_configured(ConnectRulesId(0), &origin, &shared_health))
                .collect();
            let limits = Limits::default();
            Self {
                shared_health,
                origins,
                route: RouteOrigins::new(ids),
                limits,
                now: Instant::default(),
            }
        }

        /// Returns the same origins as another worker has them.
        fn another_worker(&self) -> Origins {
            let mut origins = Origins::new(100, &Thresholds::FIXED);
            for port in 1..=self.route.origins.len() as u16 {
                let origin = Origin::Tcp { host: "a".to_owned(), port, tls: false };
                origins.intern_configured(ConnectRulesId(0), &origin, &self.shared_health);
            }
            origins
        }

        fn pick(&mut self, failed: Option<usize>) -> (usize, PickReason) {
            let failed = failed.map(|index| self.route.origins[index]);
            let probing = || ProbeContext { now: self.now, is_repeatable: true };
            let (id, reason) =
                pick(&mut self.origins, &self.route, &self.shared_health, failed, probing);
            let index = self.route.origins.iter().position(|&other| other == id);
            (index.expect("an origin of the route"), reason)
        }

        fn fail(&mut self, index: usize) {
            let id = self.route.origins[index];
            for _ in 0..self.limits.eject_failures {
                self.origins.record_failure(
                    id,
                    PickReason::Normal,
                    self.now,
                    &self.limits,
                    &self.shared_health,
                );
            }
        }
    }

    #[test]
    fn an_ejected_origin_is_skipped_and_the_others_share_evenly() {
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
        assert!(fixture.origins.record_response(id, PickReason::Probe, &fixture.shared_health));
        assert!(fixture.origins.all_healthy);
    }

    #[test]
    fn if_all_are_ejected_all_are_picked_except_the_one_that_just_failed() {
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
    fn a_response_at_one_worker_ends_the_failures_in_a_row_of_another() {
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
                &fixture.shared_health
            ));
        }
        fixture.origins.publish_pending(now, &rules, &fixture.shared_health);
        std::mem::swap(&mut fixture.origins, &mut other);
        fixture.pick(None);
        assert!(!fixture.origins.all_pristine, "a response has to be recorded");
        fixture.origins.record_response(id, PickReason::Normal, &fixture.shared_health);
        fixture.origins.publish_pending(now, &rules, &fixture.shared_health);
        assert!(fixture.origins.all_pristine);
        std::mem::swap(&mut fixture.origins, &mut other);
        fixture.pick(None);
        assert!(!fixture.origins.record_failure(
            id,
            PickReason::Normal,
            now,
            &rules,
            &fixture.shared_health
        ));
        assert_eq!(fixture.pick(None), (0, PickReason::Normal));
    }

    #[test]
    fn another_worker_applies_an_ejection_with_its_next_pick() {
        let mut fixture = Fixture::new(2);
        let mut other = fixture.another_worker();
        fixture.fail(0);
        std::mem::swap(&mut fixture.origins, &mut other);
        assert!((0..4).all(|_| fixture.pick(None) == (1, PickReason::Normal)));
    }
}
