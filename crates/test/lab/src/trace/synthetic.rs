//! Traces that each have one property: skew, objects that are requested only once, a crawler,
//! change.

use rand_distr::{Distribution, Zipf};
use rand_pcg::Pcg64;

use super::{SurgeSizes, Trace, below, seeded, uniform};

/// Number of requests of a trace, as a multiple of its scale. [`one_hit`] and [`scan`] have half as
/// many.
const REQUESTS: u32 = 20;

/// Independent draws of `objects` objects, of which the k-th most popular has a probability
/// proportional to k^-`exponent`. Sizes are those of SURGE and do not depend on popularity.
pub fn zipf(name: &'static str, objects: u32, exponent: f64) -> Trace {
    let mut random = seeded((exponent * 10.0) as u128);
    let sizes = SurgeSizes::new().sizes(objects, &mut random);
    let popular = Ranks::new(objects, exponent);
    let requests = (0..objects * REQUESTS).map(|_| popular.draw(&mut random)).collect();
    Trace { name, requests, sizes }
}

/// At random, half of the requests are for objects that are requested only once. The others are
/// Zipf 0.9 over `objects`.
pub fn one_hit(objects: u32) -> Trace {
    let mut random = seeded(101);
    let count = objects * REQUESTS / 2;
    let mut requests = Vec::with_capacity(count as usize);
    let popular = Ranks::new(objects, 0.9);
    let mut fresh = objects;
    for _ in 0..count {
        if uniform(&mut random) < 0.5 {
            requests.push(fresh);
            fresh += 1;
        } else {
            requests.push(popular.draw(&mut random));
        }
    }
    let sizes = SurgeSizes::new().sizes(fresh, &mut random);
    Trace { name: "one-hit wonders", requests, sizes }
}

/// A tenth of the objects is hot (Zipf 0.9). A crawler requests all others in order, repeatedly, in
/// bursts that make up four of ten requests.
pub fn scan(objects: u32) -> Trace {
    let mut random = seeded(102);
    let sizes = SurgeSizes::new().sizes(objects, &mut random);
    let hot = objects / 10;
    let popular = Ranks::new(hot, 0.9);
    let burst = objects / 10;
    let mut requests = Vec::new();
    let mut crawled = hot;
    while requests.len() < (objects * REQUESTS) as usize / 2 {
        requests.extend((0..burst * 3 / 2).map(|_| popular.draw(&mut random)));
        for _ in 0..burst {
            requests.push(crawled);
            crawled = if crawled + 1 < objects { crawled + 1 } else { hot };
        }
    }
    Trace { name: "scan and hot set", requests, sizes }
}

/// Zipf 0.9 with a changing order. Every 20 requests, a popular object changes places with any
/// other. Eight times, a new object draws a crowd: for a while, one request of eight is for it.
pub fn drift(objects: u32) -> Trace {
    let mut random = seeded(103);
    let popular = Ranks::new(objects, 0.9);
    let mut order: Vec<u32> = (0..objects).collect();
    let count = objects * REQUESTS;
    let crowd_every = count / 8;
    let mut requests = Vec::with_capacity(count as usize);
    let mut fresh = objects;
    for turn in 0..count {
        if turn % 20 == 0 {
            let one = popular.draw(&mut random) as usize;
            order.swap(one, below(&mut random, objects) as usize);
        }
        let since = turn % crowd_every;
        if since == 0 {
            fresh += 1;
        }
        if since < crowd_every / 8 && uniform(&mut random) < 0.125 {
            requests.push(fresh - 1);
        } else {
            requests.push(order[popular.draw(&mut random) as usize]);
        }
    }
    let sizes = SurgeSizes::new().sizes(fresh, &mut random);
    Trace { name: "drift and crowds", requests, sizes }
}

/// Objects by their rank of popularity, 0 the first.
struct Ranks(Zipf<f64>);

impl Ranks {
    fn new(objects: u32, exponent: f64) -> Self {
        Self(Zipf::new(f64::from(objects), exponent).expect("at least one object"))
    }

    fn draw(&self, random: &mut Pcg64) -> u32 {
        self.0.sample(random) as u32 - 1
    }
}
