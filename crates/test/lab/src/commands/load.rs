//! `load`: writes the files of a set, and generates load.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use millrace_lab::load::file_set::PRESETS;
use millrace_lab::load::settings::URL_ALLOWED;
use millrace_lab::load::{
    self, Arrivals, ConnectionReuse, FileSet, FileSetModel, LoadReport, LoadSettings, LoadTarget,
    Rate, RequestPlan, Surge,
};

use crate::commands::fail;

const USAGE: &str = "\
Usage: millrace-lab load files DIR [--preset PRESET]
       millrace-lab load surge URL --users N --seconds S [OPTION]...
       millrace-lab load rate URL --rate R --seconds S [OPTION]...
Writes the files of a set, or requests them as the users of SURGE do, or requests one object at a
rate. Requests begin at planned times, even if the server is slow. Prints results at the end, and
fails if responses with status 200 are wrong or the machine has no room for another connection.
  --preset PRESET            the set of files [default: booster]
  --users N                  the number of users
  --rate R                   requests per second
  --arrivals KIND            constant or poisson [default: constant]
  --bytes N                  rate: the length of the object [default: that of the first response]
  --seconds S                the time in which requests begin
  --drain S                  the time after it for responses [default: 5]
  --seed N                   the seed of all draws [default: 1]
  --http10                   use HTTP/1.0, and each connection once [default: HTTP/1.1, once]
  --persistent               surge: use connections again
  --connections-per-user N   surge: idle connections that a user keeps; implies --persistent
                             [default: 5]
  --connections N            rate: use up to N connections again; further requests wait
  --header 'NAME: VALUE'     add a field to requests; may be repeated
  --bind ADDRESS             connect from this address; may be repeated
  --json                     print one JSON object
";

/// The arguments of the command.
#[derive(Default)]
struct LoadOptions {
    kind: String,
    /// The directory or the URL.
    place: String,
    preset: Option<FileSetModel>,
    users: Option<u32>,
    rate: Option<f64>,
    is_poisson: bool,
    bytes: Option<u64>,
    time: Option<Duration>,
    drain: Option<Duration>,
    seed: Option<u64>,
    reuse: Option<ConnectionReuse>,
    fields: Vec<String>,
    sources: Vec<std::net::IpAddr>,
    has_json: bool,
}

/// Runs the command with its arguments.
pub(crate) fn run(mut arguments: impl Iterator<Item = String>) -> ExitCode {
    let prepared = match parse(&mut arguments) {
        Ok(Some(options)) => prepare(options),
        Ok(None) => {
            println!("{USAGE}PRESET is one of {PRESETS}. URL is {URL_ALLOWED}.");
            return ExitCode::SUCCESS;
        }
        Err(error) => Err(error),
    };
    match prepared {
        Ok(work) => execute(work),
        Err(error) => fail("load", 2, error),
    }
}

/// Returns the options; `None` if help is wanted.
fn parse(arguments: &mut dyn Iterator<Item = String>) -> Result<Option<LoadOptions>, String> {
    let mut options = LoadOptions::default();
    let mut positions = Vec::new();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--help" => return Ok(None),
            "--json" => options.has_json = true,
            "--http10" => options.set_reuse(ConnectionReuse::Http10)?,
            // A number of connections may come before or after it.
            "--persistent" if matches!(options.reuse, Some(ConnectionReuse::PerUser(_))) => {}
            "--persistent" => options.set_reuse(ConnectionReuse::PerUser(IDLE_PER_USER))?,
            name if name.starts_with("--") => {
                let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
                options.set(name, &value)?;
            }
            _ => positions.push(argument),
        }
    }
    let [kind, place] = <[String; 2]>::try_from(positions)
        .map_err(|given| format!("{given:?} is no load (expected: {LOADS})"))?;
    (options.kind, options.place) = (kind, place);
    Ok(Some(options))
}

impl LoadOptions {
    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let wrong = |kind: &str| format!("{name}: {value:?} is no {kind}");
        match name {
            "--preset" => {
                let preset = FileSetModel::of_preset(value);
                let wrong = || format!("{} (expected: {PRESETS})", wrong("preset"));
                self.preset = Some(preset.ok_or_else(wrong)?);
            }
            "--users" => self.users = Some(positive(value).ok_or_else(|| wrong("number"))?),
            "--rate" => {
                let rate = value.parse().ok().filter(|rate: &f64| *rate > 0.0 && rate.is_finite());
                self.rate = Some(rate.ok_or_else(|| wrong("rate"))?);
            }
            "--arrivals" => {
                let wrong = || format!("{} (expected: constant, poisson)", wrong("kind"));
                let kind = ["constant", "poisson"].iter().position(|kind| *kind == value);
                self.is_poisson = kind.ok_or_else(wrong)? == 1;
            }
            "--bytes" => self.bytes = Some(value.parse().map_err(|_| wrong("number"))?),
            "--seconds" => {
                let time = seconds(value).filter(|time| !time.is_zero());
                self.time = Some(time.ok_or_else(|| wrong("time"))?);
            }
            "--drain" => self.drain = Some(seconds(value).ok_or_else(|| wrong("time"))?),
            "--seed" => self.seed = Some(value.parse().map_err(|_| wrong("number"))?),
            "--connections-per-user" => {
                let count = positive(value).ok_or_else(|| wrong("number"))?;
                if self.reuse == Some(ConnectionReuse::PerUser(IDLE_PER_USER)) {
                    self.reuse = None;
                }
                self.set_reuse(ConnectionReuse::PerUser(count as usize))?;
            }
            "--connections" => {
                let count = positive(value).ok_or_else(|| wrong("number"))?;
                self.set_reuse(ConnectionReuse::Pool(count as usize))?;
            }
            "--header" => self.fields.push(value.to_owned()),
            "--bind" => self.sources.push(value.parse().map_err(|_| wrong("address"))?),
            _ => return Err(format!("{name:?} is no option (expected: {OPTIONS})")),
        }
        Ok(())
    }

    fn set_reuse(&mut self, reuse: ConnectionReuse) -> Result<(), String> {
        if self.reuse.replace(reuse).is_some_and(|earlier| earlier != reuse) {
            let options = "--http10, --persistent, --connections-per-user, --connections";
            return Err(format!("use of connections: given twice (expected: one of {options})"));
        }
        Ok(())
    }
}

/// A command whose arguments are valid.
enum Work {
    Files { model: FileSetModel, directory: String },
    Load { plan: Box<dyn RequestPlan>, settings: LoadSettings, has_json: bool },
}

fn prepare(options: LoadOptions) -> Result<Work, String> {
    let needed = |name: &str| format!("{name} is needed");
    let model = options.preset.unwrap_or(FileSetModel::BOOSTER);
    if options.kind == "files" {
        return Ok(Work::Files { model, directory: options.place });
    }
    let mut target = LoadTarget::parse(&options.place)?;
    options.fields.iter().try_for_each(|line| target.add_field(line))?;
    let reuse = options.reuse.unwrap_or(ConnectionReuse::Close);
    let time = options.time.ok_or_else(|| needed("--seconds"))?;
    let seed = options.seed.unwrap_or(1);
    let plan: Box<dyn RequestPlan> = match (options.kind.as_str(), reuse) {
        ("surge", ConnectionReuse::Pool(_)) => return Err("surge has no --connections".into()),
        ("rate", ConnectionReuse::PerUser(_)) => return Err("rate has no --persistent".into()),
        ("surge", _) => {
            let users = options.users.ok_or_else(|| needed("--users"))?;
            Box::new(Surge::new(FileSet::new(model), users, time, seed))
        }
        ("rate", _) => {
            let rate = options.rate.ok_or_else(|| needed("--rate"))?;
            let poisson = options.is_poisson;
            let arrivals = if poisson { Arrivals::Poisson } else { Arrivals::Constant };
            let plan = Rate::new(rate, arrivals, time, seed);
            Box::new(match options.bytes {
                Some(bytes) => plan.expect_bytes(bytes),
                None => plan,
            })
        }
        (kind, _) => return Err(format!("{kind:?} is no load (expected: {LOADS})")),
    };
    let drain = options.drain.unwrap_or(DRAIN);
    let settings = LoadSettings { target, sources: options.sources, reuse, drain };
    Ok(Work::Load { plan, settings, has_json: options.has_json })
}

fn execute(work: Work) -> ExitCode {
    let (mut plan, settings, has_json) = match work {
        Work::Files { model, directory } => return write_files(model, Path::new(&directory)),
        Work::Load { plan, settings, has_json } => (plan, settings, has_json),
    };
    if let Err(error) = millrace_sys::raise_descriptor_limit() {
        return fail("load", 1, format!("descriptors: {error}"));
    }
    match load::run(&mut *plan, &settings) {
        Ok(report) => print(&report, has_json),
        Err(error) => fail("load", 1, error),
    }
}

fn print(report: &LoadReport, has_json: bool) -> ExitCode {
    if has_json {
        println!("{}", report.json());
    } else {
        print!("{report}");
    }
    if report.is_valid() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn write_files(model: FileSetModel, directory: &Path) -> ExitCode {
    let set = FileSet::new(model);
    let made = std::fs::create_dir_all(directory);
    let made = made.map_err(|error| format!("{}: {error}", directory.display()));
    if let Err(error) = made.and_then(|()| set.write(directory)) {
        return fail("load", 1, error);
    }
    println!(
        "{} files, {} bytes; a requested file has {:.0} bytes on average",
        set.files().len(),
        set.total_bytes(),
        set.mean_requested_bytes()
    );
    ExitCode::SUCCESS
}

fn positive(text: &str) -> Option<u32> {
    text.parse().ok().filter(|count| *count > 0)
}

fn seconds(text: &str) -> Option<Duration> {
    let time = Duration::try_from_secs_f64(text.parse().ok()?).ok()?;
    (time <= TIME_MAX).then_some(time)
}

/// The idle connections of a user, as many as SURGE uses in parallel.
const IDLE_PER_USER: usize = 5;
const DRAIN: Duration = Duration::from_secs(5);
/// A week.
const TIME_MAX: Duration = Duration::from_secs(7 * 86_400);
const LOADS: &str = "files DIR, surge URL, rate URL";
const OPTIONS: &str = "--preset, --users, --rate, --arrivals, --bytes, --seconds, --drain, --seed, --http10, \
                       --persistent, --connections-per-user, --connections, --header, --bind, \
                       --json, --help";
