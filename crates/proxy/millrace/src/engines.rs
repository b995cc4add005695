//! Which engine the workers run on, and why.

use std::time::Duration;

use millrace_config::{Config, EngineChoice};
use millrace_engine::{EpollWatch, Error, ReservedRing, Watch};

use crate::failure::Failure;
use crate::{calibrate, rings};

/// An engine of this program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Engine {
    Epoll,
    Uring,
    Uselect,
    Poll,
    Select,
}

impl Engine {
    /// As `--engine` names it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Epoll => "epoll",
            Self::Uring => "uring",
            Self::Uselect => "uselect",
            Self::Poll => "poll",
            Self::Select => "select",
        }
    }
}

/// The engine to run on, and why it is that one.
#[derive(Debug)]
pub(crate) struct Picked {
    pub(crate) engine: Engine,
    pub(crate) reason: String,
    /// One for each worker if they run on [`Engine::Uring`]; otherwise none.
    pub(crate) rings: Vec<ReservedRing>,
}

/// Times that each engine is measured, in turn; the least counts, as everything that disturbs a
/// measurement adds to it.
const ROUNDS: usize = 4;

/// The number of rings that [`pick`] reserves at once: one for each worker, and those that it
/// measures or probes. For engines without rings, the number that their workers would need.
pub(crate) fn rings_needed(choice: EngineChoice, workers: usize) -> usize {
    workers
        + match choice {
            EngineChoice::Auto => ROUNDS,
            EngineChoice::Uring => 1,
            _ => 0,
        }
}

/// The engine that is asked for. To pick one for `auto` takes some 20 ms of CPU time.
///
/// # Errors
/// When the one that was asked for cannot be had here.
pub(crate) fn pick(config: &Config) -> Result<Picked, Failure> {
    let picked = |engine, rings| Picked { engine, reason: "asked for".to_owned(), rings };
    let asked = |engine| Ok(picked(engine, Vec::new()));
    let needed = rings_needed(config.engine, config.workers);
    match config.engine {
        EngineChoice::Epoll => asked(Engine::Epoll),
        EngineChoice::Uselect => {
            match millrace_engine::track(&config.uselectd, Duration::from_micros(config.spin_us)) {
                Ok(()) => asked(Engine::Uselect),
                Err(error) => Err(Failure::machine("--engine uselect", error.at(&config.uselectd))),
            }
        }
        EngineChoice::Poll => asked(Engine::Poll),
        EngineChoice::Select => asked(Engine::Select),
        EngineChoice::Uring => {
            let refused = |why: String| Failure::Machine(format!("--engine uring: {why}"));
            let mut rings = rings::reserve(config.workers, needed)
                .map_err(|shortage| refused(shortage.to_string()))?;
            // A filter of system calls may allow io_uring_setup(2) and nothing else.
            let probe = rings.pop().expect("one is spare").into_watch();
            probe.map_err(|error| refused(error.to_string()))?;
            Ok(picked(Engine::Uring, rings))
        }
        // The rings to measure are reserved with those of the workers: the kernel releases a ring
        // some time after it is closed, and until then its memory is not free for another one.
        EngineChoice::Auto => Ok(match rings::reserve(config.workers, needed) {
            Ok(mut rings) => {
                let measured = measure(rings.split_off(config.workers));
                compared(measured, rings)
            }
            Err(shortage) => on_epoll(format!("auto: {shortage}")),
        }),
    }
}

fn on_epoll(reason: String) -> Picked {
    Picked { engine: Engine::Epoll, reason, rings: Vec::new() }
}

/// CPU time of a message over (epoll, uring).
fn measure(rings: Vec<ReservedRing>) -> Result<(Duration, Duration), Error> {
    let mut least = (Duration::MAX, Duration::MAX);
    for ring in rings {
        least.0 = least.0.min(calibrate::cost(EpollWatch::new()?)?);
        least.1 = least.1.min(calibrate::cost(ring.into_watch()?)?);
    }
    Ok(least)
}

fn compared(measured: Result<(Duration, Duration), Error>, rings: Vec<ReservedRing>) -> Picked {
    match measured {
        Ok((epoll, uring)) => {
            let is_uring = uring <= epoll;
            let us = |cost: Duration| cost.as_nanos() as f64 / 1000.0;
            let (uring, epoll) = (us(uring), us(epoll));
            let reason =
                format!("auto: a message takes {uring:.2} us by uring and {epoll:.2} us by epoll");
            match is_uring {
                true => Picked { engine: Engine::Uring, reason, rings },
                false => on_epoll(reason),
            }
        }
        Err(error) => on_epoll(format!("auto: the engines could not be compared: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use millrace_config::from_arguments;

    use super::*;

    #[test]
    fn auto_takes_uring_only_where_it_is_not_dearer() {
        let us = Duration::from_micros;
        for (epoll, uring, expected) in
            [(3, 2, Engine::Uring), (3, 3, Engine::Uring), (2, 3, Engine::Epoll)]
        {
            let picked = compared(Ok((us(epoll), us(uring))), Vec::new());
            assert_eq!(picked.engine, expected);
            assert!(picked.reason.contains(&format!("{epoll}.00 us by epoll")));
        }
        let picked = compared(Err(Error::TimedOut), Vec::new());
        assert!(picked.engine == Engine::Epoll && picked.reason.contains("could not be compared"));
    }

    #[test]
    fn what_is_asked_for_is_taken() {
        let with = |engine| pick(&Config { engine, ..config() });
        for (choice, engine) in [
            (EngineChoice::Epoll, Engine::Epoll),
            (EngineChoice::Uring, Engine::Uring),
            (EngineChoice::Poll, Engine::Poll),
            (EngineChoice::Select, Engine::Select),
        ] {
            match with(choice) {
                Err(_) if engine == Engine::Uring && ReservedRing::new().is_err() => {}
                picked => {
                    let picked = picked.unwrap();
                    assert_eq!(picked.engine, engine);
                    let workers = config().workers;
                    let rings = if engine == Engine::Uring { workers } else { 0 };
                    assert_eq!(picked.rings.len(), rings);
                }
            }
        }
        assert!(with(EngineChoice::Auto).unwrap().reason.starts_with("auto: "));
        let nowhere = Config { uselectd: "/no/such".into(), ..config() };
        let refused = pick(&Config { engine: EngineChoice::Uselect, ..nowhere }).unwrap_err();
        let words = "--engine uselect: uselectd is not running at /no/such";
        assert!(refused.to_string().ends_with(words), "{refused}");
    }

    fn config() -> Config {
        from_arguments(["forward", "--listen", "127.0.0.1:0"]).unwrap()
    }
}
