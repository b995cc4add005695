//! Selects the engine of the workers.

use std::time::Duration;

use millrace_config::{Config, EngineChoice};
use millrace_engine::{EpollWatch, Error, ReservedRing, Watch};

use crate::program_error::ProgramError;
use crate::{calibrate, ring_reservation};

/// An engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Engine {
    Epoll,
    Uring,
    Uselect,
    Poll,
    Select,
}

impl Engine {
    /// Returns the name that `--engine` uses.
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

/// The selected engine and the reason for it.
#[derive(Debug)]
pub(crate) struct EngineSelection {
    pub(crate) engine: Engine,
    pub(crate) reason: String,
    /// One ring for each worker with [`Engine::Uring`]; otherwise empty.
    pub(crate) rings: Vec<ReservedRing>,
}

/// The number of measurements of each engine. The engines alternate. The minimum of each is
/// compared, because disturbances only add to a measurement.
const ROUNDS: usize = 4;

/// Returns the number of rings that [`select_engine`] reserves at once: one for each worker, and
/// those that it measures or probes. For an engine without rings, `doctor` gets the number that the
/// workers would need.
pub(crate) fn rings_needed(choice: EngineChoice, workers: usize) -> usize {
    workers
        + match choice {
            EngineChoice::Auto => ROUNDS,
            EngineChoice::Uring => 1,
            _ => 0,
        }
}

/// Selects the configured engine. For `auto` this takes about 20 ms of CPU time.
///
/// # Errors
/// If the configured engine is not available.
pub(crate) fn select_engine(config: &Config) -> Result<EngineSelection, ProgramError> {
    let selected =
        |engine, rings| EngineSelection { engine, reason: "configured".to_owned(), rings };
    let requested = |engine| Ok(selected(engine, Vec::new()));
    let needed = rings_needed(config.engine, config.workers);
    match config.engine {
        EngineChoice::Epoll => requested(Engine::Epoll),
        EngineChoice::Uselect => {
            match millrace_engine::register_process(
                &config.uselectd,
                Duration::from_micros(config.spin_us),
            ) {
                Ok(()) => requested(Engine::Uselect),
                Err(error) => {
                    Err(ProgramError::system("--engine uselect", error.at_path(&config.uselectd)))
                }
            }
        }
        EngineChoice::Poll => requested(Engine::Poll),
        EngineChoice::Select => requested(Engine::Select),
        EngineChoice::Uring => {
            let refused = |why: String| ProgramError::System(format!("--engine uring: {why}"));
            let mut rings = ring_reservation::reserve(config.workers, needed)
                .map_err(|shortage| refused(shortage.to_string()))?;
            // A system call filter may allow only io_uring_setup(2), so the rings are probed as
            // well.
            let probe = rings.pop().expect("one is spare").into_watch();
            probe.map_err(|error| refused(error.to_string()))?;
            Ok(selected(Engine::Uring, rings))
        }
        // The rings for measuring are reserved together with those of the workers: the kernel
        // releases a closed ring with a delay, and until then its memory counts against the limit.
        EngineChoice::Auto => Ok(match ring_reservation::reserve(config.workers, needed) {
            Ok(mut rings) => {
                let measured = measure(rings.split_off(config.workers));
                select_cheaper(measured, rings)
            }
            Err(shortage) => epoll_for(format!("auto: {shortage}")),
        }),
    }
}

fn epoll_for(reason: String) -> EngineSelection {
    EngineSelection { engine: Engine::Epoll, reason, rings: Vec::new() }
}

/// Returns the CPU time of one message over (epoll, uring).
fn measure(rings: Vec<ReservedRing>) -> Result<(Duration, Duration), Error> {
    let mut least = (Duration::MAX, Duration::MAX);
    for ring in rings {
        least.0 = least.0.min(calibrate::measure_engine(EpollWatch::new()?)?);
        least.1 = least.1.min(calibrate::measure_engine(ring.into_watch()?)?);
    }
    Ok(least)
}

fn select_cheaper(
    measured: Result<(Duration, Duration), Error>,
    rings: Vec<ReservedRing>,
) -> EngineSelection {
    match measured {
        Ok((epoll, uring)) => {
            let is_uring = uring <= epoll;
            let us = |cost: Duration| cost.as_nanos() as f64 / 1000.0;
            let (uring, epoll) = (us(uring), us(epoll));
            let reason =
                format!("auto: a message takes {uring:.2} us by uring and {epoll:.2} us by epoll");
            match is_uring {
                true => EngineSelection { engine: Engine::Uring, reason, rings },
                false => epoll_for(reason),
            }
        }
        Err(error) => {
            let why = calibrate::describe_failure(error);
            epoll_for(format!("auto: cannot compare uring with epoll: {why}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use millrace_config::from_arguments;

    use super::*;

    #[test]
    fn auto_selects_uring_unless_it_costs_more() {
        let us = Duration::from_micros;
        for (epoll, uring, expected) in
            [(3, 2, Engine::Uring), (3, 3, Engine::Uring), (2, 3, Engine::Epoll)]
        {
            let selected = select_cheaper(Ok((us(epoll), us(uring))), Vec::new());
            assert_eq!(selected.engine, expected);
            assert!(selected.reason.contains(&format!("{epoll}.00 us by epoll")));
        }
        for (error, reason) in [
            (Error::TimedOut, "auto: cannot compare uring with epoll: the machine is too busy"),
            (Error::OutOfMemory, "auto: cannot compare uring with epoll: out of kernel memory"),
        ] {
            let selected = select_cheaper(Err(error), Vec::new());
            assert!(selected.engine == Engine::Epoll && selected.reason == reason);
        }
    }

    #[test]
    fn a_configured_engine_is_used() {
        let with = |engine| select_engine(&Config { engine, ..config() });
        for (choice, engine) in [
            (EngineChoice::Epoll, Engine::Epoll),
            (EngineChoice::Uring, Engine::Uring),
            (EngineChoice::Poll, Engine::Poll),
            (EngineChoice::Select, Engine::Select),
        ] {
            match with(choice) {
                Err(_) if engine == Engine::Uring && ReservedRing::new().is_err() => {}
                selected => {
                    let selected = selected.unwrap();
                    assert_eq!(selected.engine, engine);
                    let workers = config().workers;
                    let rings = if engine == Engine::Uring { workers } else { 0 };
                    assert_eq!(selected.rings.len(), rings);
                }
            }
        }
        assert!(with(EngineChoice::Auto).unwrap().reason.starts_with("auto: "));
        let nowhere = Config { uselectd: "/no/such".into(), ..config() };
        let refused =
            select_engine(&Config { engine: EngineChoice::Uselect, ..nowhere }).unwrap_err();
        let words = "--engine uselect: uselectd is not running at /no/such";
        assert!(refused.to_string().ends_with(words), "{refused}");
    }

    fn config() -> Config {
        from_arguments(["forward", "--listen", "127.0.0.1:0"]).unwrap()
    }
}
