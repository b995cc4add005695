//! The content and popularity of Web Polygraph's PolyMix-4 and WebAxe-4, without their timing.
//!
//! Only the values of parameters come from Polygraph. Robots request pages: HTML files, downloads,
//! and other files. An HTML file embeds images, which are requested after it each time. Repeated
//! requests are for pages of the working set, which are the newest pages.

use rand_distr::{Distribution, Exp, LogNormal};
use rand_pcg::Pcg64;

use super::{Trace, below, bytes, seeded, uniform};

/// The parameters that differ between the workloads.
#[derive(Clone, Copy, Debug)]
pub struct Polymix {
    seed: u128,
    /// The share of requests for pages that were requested before.
    recurrence: f64,
}

impl Polymix {
    /// PolyMix-4, for forward proxies. It offers 55 % hits, and 80 % of its requests are cachable:
    /// 0.55 / 0.80 = 0.6875.
    pub const FORWARD: Self = Self { seed: 104, recurrence: 0.6875 };
    /// WebAxe-4, for reverse proxies.
    pub const REVERSE: Self = Self { seed: 105, recurrence: 0.95 };
}

/// Returns a trace whose working set has `objects / 10` pages. With their images, these are about
/// three times as many objects.
pub fn polymix(name: &'static str, objects: u32, kind: Polymix) -> Trace {
    let mut random = seeded(kind.seed);
    let mut content = Content::new();
    let mut requests = Vec::new();
    let window = objects / 10;
    let mut left = window * REQUESTS_PER_PAGE;
    while left > 0 {
        let made = content.pages.len() as u32;
        // While Polygraph fills the working set, 5 of 60 requests recur.
        let recurrence = if made < window { 5.0 / 60.0 } else { kind.recurrence };
        let page = if made > 0 && uniform(&mut random) < recurrence {
            content.recurring_page(made.saturating_sub(window), &mut random)
        } else {
            content.add_page(&mut random)
        };
        if made >= window {
            left -= 1;
        }
        let page = &content.pages[page as usize];
        requests.extend(page.cachable.then_some(page.object));
        requests.extend(&page.images);
    }
    Trace { name, requests, sizes: content.sizes }
}

/// All pages and objects created so far.
struct Content {
    pages: Vec<Page>,
    sizes: Vec<u64>,
    image: Exp<f64>,
    html: Exp<f64>,
    download: LogNormal<f64>,
    other: LogNormal<f64>,
}

struct Page {
    object: u32,
    cachable: bool,
    /// The images that are cachable.
    images: Vec<u32>,
}

/// Number of requests for pages, as a multiple of the pages in the working set.
const REQUESTS_PER_PAGE: u32 = 50;
const KB: f64 = 1024.0;
/// Share of HTML files among pages.
const HTML: f64 = 15.0 / 35.0;
/// Share of downloads among pages.
const DOWNLOAD: f64 = 0.5 / 35.0;
/// One page in this many is in the hot set.
const HOT_EVERY: u32 = 100;
/// Share of recurring requests that go to the hot set.
const HOT_SHARE: f64 = 0.1;
/// Share of the other recurring requests that go to the smallest of nine neighbouring pages
/// (`bhr_discrimination`).
const SMALLEST_SHARE: f64 = 0.9;

impl Content {
    fn new() -> Self {
        Self {
            pages: Vec::new(),
            sizes: Vec::new(),
            image: exponential(4.5 * KB),
            html: exponential(8.5 * KB),
            download: log_normal(300.0 * KB, 300.0 * KB),
            other: log_normal(25.0 * KB, 10.0 * KB),
        }
    }

    /// Creates a page.
    fn add_page(&mut self, random: &mut Pcg64) -> u32 {
        let draw = uniform(random);
        let mut images = Vec::new();
        let (size, cachable) = if draw < HTML {
            // zipf(13) as Polygraph has it: floor(14^U), so small numbers are likelier.
            for _ in 0..14f64.powf(uniform(random)) as u32 {
                let size = self.image.sample(random);
                let image = self.add_object(size);
                images.extend((uniform(random) < 0.80).then_some(image));
            }
            (self.html.sample(random), 0.90)
        } else if draw < HTML + DOWNLOAD {
            (self.download.sample(random), 0.95)
        } else {
            (self.other.sample(random), 0.72)
        };
        let object = self.add_object(size);
        self.pages.push(Page { object, cachable: uniform(random) < cachable, images });
        self.pages.len() as u32 - 1
    }

    fn add_object(&mut self, size: f64) -> u32 {
        self.sizes.push(bytes(size));
        self.sizes.len() as u32 - 1
    }

    /// Returns a page of the working set, which begins at `first`.
    fn recurring_page(&self, first: u32, random: &mut Pcg64) -> u32 {
        let end = self.pages.len() as u32;
        let page = first + below(random, end - first);
        if uniform(random) < HOT_SHARE {
            return (page / HOT_EVERY * HOT_EVERY).max(first);
        }
        if uniform(random) >= SMALLEST_SHARE {
            return page;
        }
        let near = page.saturating_sub(4).max(first)..(page + 5).min(end);
        near.min_by_key(|&near| self.sizes[self.pages[near as usize].object as usize])
            .expect("the page itself is among its neighbours")
    }
}

fn exponential(mean: f64) -> Exp<f64> {
    Exp::new(1.0 / mean).expect("a positive mean")
}

/// Returns the distribution of a variable with this mean and deviation. Polygraph states these two,
/// and not those of the logarithm.
fn log_normal(mean: f64, deviation: f64) -> LogNormal<f64> {
    LogNormal::from_mean_cv(mean, deviation / mean).expect("a positive mean")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_has_the_published_means() {
        let mut random = seeded(1);
        let mut content = Content::new();
        for _ in 0..40_000 {
            content.add_page(&mut random);
        }
        let mean = content.sizes.iter().sum::<u64>() as f64 / content.sizes.len() as f64 / KB;
        assert!((10.2..10.9).contains(&mean), "mean object {mean} KB");
        let images = content.sizes.len() - content.pages.len();
        let share = images as f64 / content.sizes.len() as f64;
        assert!((0.64..0.67).contains(&share), "share of images {share}");
    }
}
