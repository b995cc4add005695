//! Which engine the workers run on, and why.

use std::time::Duration;

use millrace_event::{Clock, EngineOptions, EpollWatch, Error, Uring, UringWatch};
use millrace_proxy::config::{Config, EngineChoice};

use crate::calibrate;
use crate::failure::Failure;

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
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Picked {
    pub(crate) engine: Engine,
    pub(crate) reason: String,
}

/// Times that each engine is measured, in turn; the least counts, as everything that disturbs a
/// measurement adds to it.
const ROUNDS: u32 = 4;

/// The engine that is asked for. To pick one for `auto` takes some 20 ms of CPU time.
///
/// # Errors
/// When the one that was asked for cannot be had here.
pub(crate) fn pick(config: &Config) -> Result<Picked, Failure> {
    let asked = |engine| Ok(Picked { engine, reason: "asked for".to_owned() });
    match config.engine {
        EngineChoice::Epoll => asked(Engine::Epoll),
        EngineChoice::Uselect => {
            match millrace_event::track(&config.uselectd, Duration::from_micros(config.spin_us)) {
                Ok(()) => asked(Engine::Uselect),
                Err(error) => Err(Failure::Machine(format!(
                    "--engine uselect: {}",
                    error.at(&config.uselectd)
                ))),
            }
        }
        EngineChoice::Poll => asked(Engine::Poll),
        EngineChoice::Select => asked(Engine::Select),
        EngineChoice::Uring => match probe() {
            Ok(()) => asked(Engine::Uring),
            Err(error) => Err(Failure::Machine(format!("--engine uring: {error}"))),
        },
        EngineChoice::Auto => Ok(match probe() {
            Ok(()) => compared(measure()),
            Err(error) => Picked { engine: Engine::Epoll, reason: format!("auto: {error}") },
        }),
    }
}

/// Whether this kernel has what uring is made of, and lets this process have it.
fn probe() -> Result<(), Error> {
    let options = EngineOptions { budget_bytes: 1, log: None, clock: Clock::new() };
    Uring::new(options).map(drop)
}

/// CPU time of a message over (epoll, uring).
fn measure() -> Result<(Duration, Duration), Error> {
    let mut least = (Duration::MAX, Duration::MAX);
    for _ in 0..ROUNDS {
        least.0 = least.0.min(calibrate::cost::<EpollWatch>()?);
        least.1 = least.1.min(calibrate::cost::<UringWatch>()?);
    }
    Ok(least)
}

fn compared(measured: Result<(Duration, Duration), Error>) -> Picked {
    match measured {
        Ok((epoll, uring)) => {
            let engine = if uring <= epoll { Engine::Uring } else { Engine::Epoll };
            let us = |cost: Duration| cost.as_nanos() as f64 / 1000.0;
            let (uring, epoll) = (us(uring), us(epoll));
            let reason =
                format!("auto: a message takes {uring:.2} us by uring and {epoll:.2} us by epoll");
            Picked { engine, reason }
        }
        Err(error) => Picked {
            engine: Engine::Epoll,
            reason: format!("auto: the engines could not be compared: {error}"),
        },
    }
}

#[cfg(test)]
mod tests {
    use millrace_proxy::config::from_arguments;

    use super::*;

    #[test]
    fn auto_takes_uring_only_where_it_is_not_dearer() {
        let us = Duration::from_micros;
        for (epoll, uring, expected) in
            [(3, 2, Engine::Uring), (3, 3, Engine::Uring), (2, 3, Engine::Epoll)]
        {
            let picked = compared(Ok((us(epoll), us(uring))));
            assert_eq!(picked.engine, expected);
            assert!(picked.reason.contains(&format!("{epoll}.00 us by epoll")));
        }
        let picked = compared(Err(Error::TimedOut));
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
                Err(_) if engine == Engine::Uring && probe().is_err() => {}
                picked => assert_eq!(picked.unwrap().engine, engine),
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
