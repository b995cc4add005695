//! The users of SURGE.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use rand_distr::{Distribution, Pareto, Weibull};
use rand_pcg::Pcg64;

use crate::load::file_set::FileSet;
use crate::load::plan::{PlannedRequest, RequestPlan};
use crate::load::references::References;
use crate::trace::{seeded, uniform};

/// User equivalents, each an ON/OFF process.
///
/// A user requests the objects of a page one after another, with an active OFF time before each
/// but the first. An inactive OFF time follows. All times are planned: SURGE begins an OFF time
/// when a response is complete, so that a slow server gets fewer requests. Here it begins when the
/// request was planned.
#[derive(Debug)]
pub struct Surge {
    set: FileSet,
    references: References,
    times: UserTimes,
    /// The next request of each user, and the objects of its page that follow.
    users: BinaryHeap<Reverse<(Duration, u32, u32)>>,
    time: Duration,
}

/// The distributions of a user.
#[derive(Debug)]
struct UserTimes {
    /// Objects of a page.
    objects: Pareto<f64>,
    /// Seconds between two requests of a page.
    active_off: Weibull<f64>,
    /// Seconds between two pages.
    inactive_off: Pareto<f64>,
    random: Pcg64,
}

/// The most objects of a page. The distribution has no bound.
const OBJECTS_MAX: f64 = 1000.0;
/// The longest time of a user without requests. It is longer than any run.
const OFF_SECONDS_MAX: f64 = 1e7;
/// Users begin at random during this time, the mean of the inactive OFF time.
const BEGIN_SECONDS: f64 = 3.0;

impl Surge {
    /// Plans the requests of `users` users in the first `time` of a run. The same seed makes the
    /// same plan.
    pub fn new(set: FileSet, users: u32, time: Duration, seed: u64) -> Self {
        let mut times = UserTimes::new(seed);
        let users = (0..users)
            .map(|user| {
                let begin = uniform(&mut times.random) * BEGIN_SECONDS;
                Reverse((Duration::from_secs_f64(begin), user, times.draw_objects() - 1))
            })
            .collect();
        Self { references: References::new(&set, seed), set, times, users, time }
    }
}

impl RequestPlan for Surge {
    fn advance(&mut self) -> Option<PlannedRequest> {
        let Reverse((at, user, following)) = self.users.pop()?;
        if at >= self.time {
            return None;
        }
        let next = match following.checked_sub(1) {
            Some(following) => Reverse((at + self.times.draw_active_off(), user, following)),
            None => {
                let objects = self.times.draw_objects();
                Reverse((at + self.times.draw_inactive_off(), user, objects - 1))
            }
        };
        self.users.push(next);
        Some(PlannedRequest { at, user, file: Some(self.references.draw()) })
    }

    fn time(&self) -> Duration {
        self.time
    }

    fn object_bytes(&self, file: Option<u32>) -> Option<u64> {
        file.map(|file| self.set.files()[file as usize].bytes)
    }
}

impl UserTimes {
    fn new(seed: u64) -> Self {
        Self {
            objects: Pareto::new(1.0, 2.43).expect("a valid shape"),
            active_off: Weibull::new(1.46, 0.382).expect("a valid shape"),
            inactive_off: Pareto::new(1.0, 1.5).expect("a valid shape"),
            random: seeded(u128::from(seed) << 64 | 1),
        }
    }

    fn draw_objects(&mut self) -> u32 {
        self.objects.sample(&mut self.random).min(OBJECTS_MAX) as u32
    }

    fn draw_active_off(&mut self) -> Duration {
        let seconds: f64 = self.active_off.sample(&mut self.random);
        Duration::from_secs_f64(seconds.min(OFF_SECONDS_MAX))
    }

    fn draw_inactive_off(&mut self) -> Duration {
        let seconds: f64 = self.inactive_off.sample(&mut self.random);
        Duration::from_secs_f64(seconds.min(OFF_SECONDS_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::file_set::FileSetModel;

    fn median(mut draws: Vec<f64>) -> f64 {
        draws.sort_by(f64::total_cmp);
        draws[draws.len() / 2]
    }

    fn is_near(value: f64, wanted: f64) -> bool {
        (value / wanted - 1.0).abs() < 0.03
    }

    #[test]
    fn times_have_the_published_distributions() {
        let mut times = UserTimes::new(1);
        let draws = |mut draw: Box<dyn FnMut() -> f64 + '_>| -> Vec<f64> {
            (0..100_000).map(|_| draw()).collect()
        };
        let active = draws(Box::new(|| times.draw_active_off().as_secs_f64()));
        // The median is 1.46 * (ln 2)^(1 / 0.382); the mean is 1.46 * gamma(1 + 1 / 0.382).
        assert!(is_near(active.iter().sum::<f64>() / 1e5, 5.57), "{active:?}");
        assert!(is_near(median(active), 0.559));
        let inactive = draws(Box::new(|| times.draw_inactive_off().as_secs_f64()));
        assert!(inactive.iter().all(|&time| time >= 1.0));
        assert!(is_near(median(inactive), 2.0_f64.powf(1.0 / 1.5)));
        let objects = draws(Box::new(|| times.draw_objects().into()));
        assert!(objects.iter().all(|&count| count >= 1.0));
        // The mean of whole objects is zeta(2.43).
        assert!(is_near(objects.iter().sum::<f64>() / 1e5, 1.376));
    }

    #[test]
    fn a_plan_is_in_order_and_the_same_each_time() {
        let set = FileSet::new(FileSetModel { files: 100, size_max: 1e6 });
        let time = Duration::from_secs(60);
        let plan = || {
            let mut surge = Surge::new(set.clone(), 50, time, 9);
            let requests = std::iter::from_fn(|| surge.advance()).collect::<Vec<_>>();
            assert_eq!(surge.object_bytes(Some(7)), Some(set.files()[7].bytes));
            requests
        };
        let requests = plan();
        assert!(requests == plan());
        assert!(requests.is_sorted_by_key(|request| request.at));
        assert!(requests.iter().all(|request| request.at < time && request.user < 50));
        assert!(requests.len() > 500, "{}", requests.len());
    }
}
