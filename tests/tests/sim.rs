//! Random scenarios, played in the simulator.
//!
//! `SEEDS=n` plays n of them from `FIRST` (0) on, until `FAILURES` (1) of them fail. `SEED=n` plays
//! only that one, and prints its scenario and its event log. A failing scenario is shrunk and
//! printed; of a scenario of the cache, only the seed and the failure are printed.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use millrace_files::SimFolderFaults;
use millrace_sim::Faults;
use millrace_tests::simulated::plan::{
    BodyFraming, Break, BreakKind, ChangeKind, Difficulty, DisabledFault, Ending, FileRequest,
    Malformation, Method, NameBehaviour, NameKind, PlannedChange, PlannedName, RandomScenario,
    Reader, ResponseFault, ServedFolder,
};
use millrace_tests::simulated::{
    Coverage, Failure, TlsFault, plain_request, plain_scenario, play_cache, play_random,
    random_cache_scenario, random_scenario, report, required_classes, search, shrink,
};

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is a number")))
}

#[test]
fn random_scenarios_hold() {
    if let Some(seed) = number("SEED") {
        return play_one(seed);
    }
    let (first, seeds) = (number("FIRST").unwrap_or(0), number("SEEDS").unwrap_or(400));
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let began = Instant::now();
    let found = search(first, seeds, threads, number("FAILURES").unwrap_or(1) as usize);
    let seconds = began.elapsed().as_secs_f64();
    for (class, count) in &found.coverage {
        println!("{count:>9}  {class}");
    }
    let pace = found.seeds as f64 / seconds;
    println!("{} seeds in {seconds:.0} s, {pace:.1} a second", found.seeds);
    for (scenario, failure) in &found.failures {
        println!("seed {}: {}: {}", scenario.seed, failure.kind, failure.details);
    }
    if let Some((scenario, failure)) = found.failures.first() {
        panic!("{}", report(scenario, failure, Duration::from_secs(60)));
    }
    let wanted = match found.seeds {
        0..400 => Vec::new(),
        400..5000 => required_classes(true),
        _ => required_classes(false),
    };
    let missing: Vec<String> =
        wanted.into_iter().filter(|class| !found.coverage.contains_key(class)).collect();
    assert!(missing.is_empty(), "never covered: {missing:?}");
}

/// Plays one seed twice and prints its scenario and its event log.
fn play_one(seed: u64) {
    let scenario = random_scenario(seed);
    let outcome = play_random(&scenario, true);
    println!("{scenario}\n{}", outcome.event_log);
    assert_eq!(outcome.hash, play_random(&scenario, true).hash, "seed {seed} repeats exactly");
    if let Some(failure) = outcome.failure {
        panic!("{}", report(&scenario, &failure, Duration::from_secs(60)));
    }
}

/// Random scenarios of the cache, with the same variables.
#[test]
fn random_cache_scenarios_hold() {
    if let Some(seed) = number("SEED") {
        let scenario = random_cache_scenario(seed);
        let outcome = play_cache(&scenario, true);
        println!("{scenario}\n{}\n{}", outcome.trace, outcome.event_log);
        assert_eq!(outcome.hash, play_cache(&scenario, true).hash, "seed {seed} repeats exactly");
        assert_eq!(outcome.failure, None);
        return;
    }
    let (first, seeds) = (number("FIRST").unwrap_or(0), number("SEEDS").unwrap_or(400));
    let most = number("FAILURES").unwrap_or(1) as usize;
    let next = AtomicU64::new(first);
    let found = Mutex::new((Vec::new(), Coverage::new()));
    let play_seeds = || {
        loop {
            // Each seed is taken once. The counter orders no other memory.
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed - first >= seeds {
                break;
            }
            let outcome = play_cache(&random_cache_scenario(seed), false);
            let mut found = found.lock().expect("no thread panics with the lock");
            for (class, count) in outcome.coverage {
                *found.1.entry(class).or_default() += count;
            }
            found.0.extend(outcome.failure.map(|failure| (seed, failure)));
            if found.0.len() >= most {
                break;
            }
        }
    };
    thread::scope(|scope| {
        (0..thread::available_parallelism().map_or(1, usize::from)).for_each(|_| {
            scope.spawn(play_seeds);
        });
    });
    let (failures, coverage) = found.into_inner().expect("no thread panicked");
    for (class, count) in &coverage {
        println!("{count:>9}  {class}");
    }
    for (seed, failure) in &failures {
        println!("seed {seed}: {}: {}", failure.kind, failure.details);
    }
    assert!(failures.is_empty(), "{} random cache scenarios fail", failures.len());
    let wanted = [
        "client: gets a response to another request",
        "client: gets a part",
        "client: gets a response that an earlier process stored",
        "operator: kills the process",
    ];
    let missing: Vec<_> =
        wanted.into_iter().filter(|class| !coverage.contains_key(*class)).collect();
    assert!(seeds < 100 || missing.is_empty(), "never covered: {missing:?}");
}

fn fails(scenario: &RandomScenario) -> Option<Failure> {
    play_random(scenario, false).failure
}

/// Regression test: the first chunk of an early response was malformed, and the proxy waited for
/// the rest of the request without a deadline.
#[test]
fn an_early_response_whose_first_chunk_is_malformed_ends_its_exchange() {
    let mut put = plain_request(1, Method::Put, 99_999, 0);
    put.response.fault = Some(ResponseFault::Chunks(0));
    put.response.early = true;
    let scenario = plain_scenario(vec![put], Ending::Idles);
    assert_eq!(fails(&scenario), None);
}

/// Regression test: a request pipelined behind a malformed one was forwarded while an earlier one
/// was in progress.
#[test]
fn requests_pipelined_behind_a_malformed_one_are_not_forwarded() {
    let mut odd = plain_request(2, Method::Get, 0, 0);
    // Two Host fields: the routing stage detects this.
    odd.malformation = Some(Malformation::Head(1));
    let requests =
        vec![plain_request(1, Method::Get, 0, 10), odd, plain_request(3, Method::Get, 0, 10)];
    let mut scenario = plain_scenario(requests, Ending::Idles);
    scenario.connections[0].pipelined = true;
    for forward in [false, true] {
        scenario.proxy.forward = forward;
        assert_eq!(fails(&scenario), None, "forward: {forward}");
    }
}

/// Regression test: a request that repeatedly got the resources for a name lookup, but never more,
/// did not time out. Each check of the wait list came while the request was not in it.
#[test]
fn a_request_that_gets_resources_only_for_its_lookup_times_out() {
    let mut scenario = plain_scenario(vec![plain_request(1, Method::Get, 0, 5)], Ending::Closes);
    scenario.difficulty = Difficulty::Hard;
    // The listener, the client, and one of the two descriptors that a lookup needs.
    scenario.proxy.descriptors = Some((3, 20));
    scenario.origins[0].naming = NameBehaviour::Slow(200);
    let outcome = play_random(&scenario, false);
    assert_eq!(outcome.failure, None);
    assert!(outcome.coverage.contains_key("proxy: responds 503 itself"), "{:?}", outcome.coverage);
}

/// Regression test: a tunnel whose origin could not be sent anything for lack of kernel memory was
/// closed in order, so that the received part looked complete.
#[test]
fn a_tunnel_broken_by_memory_shortage_is_reset_at_its_origin() {
    let mut scenario =
        plain_scenario(vec![plain_request(1, Method::Upgrade, 2671, 0)], Ending::Closes);
    (scenario.difficulty, scenario.world) = (Difficulty::Hard, Faults::Hostile);
    // Only memory is short. Segments are small, so that there are many sends.
    let kept = [DisabledFault::Memory, DisabledFault::Sizes];
    scenario.disabled_faults =
        DisabledFault::ALL.into_iter().filter(|fault| !kept.contains(fault)).collect();
    let mut broken = 0;
    for seed in 0..200 {
        scenario.seed = seed;
        let outcome = play_random(&scenario, false);
        assert_eq!(outcome.failure, None, "seed {seed}");
        broken += u32::from(outcome.coverage.contains_key("origin: sees its connection break"));
    }
    assert!(broken > 5, "{broken} of 200 broke");
}

/// Regression test: a damaged record that arrived after the announced end of the other direction
/// caused an alert, which was sent on the ended stream.
#[test]
fn a_damaged_record_after_the_announced_end_is_not_answered() {
    let mut scenario =
        plain_scenario(vec![plain_request(1, Method::Upgrade, 450, 0)], Ending::Closes);
    scenario.proxy.secured = true;
    for at in (0..1000).step_by(10) {
        scenario.connections[0].tls.fault = Some(TlsFault::FlippedBit(at));
        assert_eq!(fails(&scenario), None, "byte {at}");
    }
}

/// Regression test: the announced end of a secured connection was lost if the send buffer of the
/// kernel was full, so that a body until close looked cut.
#[test]
fn the_end_of_a_secured_connection_is_announced_although_the_buffer_is_full() {
    let mut get = plain_request(1, Method::Get, 0, 5000);
    (get.old, get.response.framing) = (true, BodyFraming::Chunks(2000));
    let mut scenario = plain_scenario(vec![get], Ending::Closes);
    scenario.proxy.secured = true;
    (scenario.difficulty, scenario.world) = (Difficulty::Easy, Faults::Benign);
    // Only buffers and segments are small.
    scenario.disabled_faults =
        DisabledFault::ALL.into_iter().filter(|fault| *fault != DisabledFault::Sizes).collect();
    for seed in 0..50 {
        scenario.seed = seed;
        assert_eq!(fails(&scenario), None, "seed {seed}");
    }
}

/// Returns a scenario of two clients of a FastCGI program. The second one must be served, whatever
/// fault the response to the first one has.
fn program_scenario(fault: ResponseFault, framing: BodyFraming) -> RandomScenario {
    let mut first = plain_request(1, Method::Get, 0, 300);
    (first.response.fault, first.response.framing) = (Some(fault), framing);
    let mut scenario = plain_scenario(vec![first], Ending::Closes);
    scenario.proxy.fastcgi = true;
    let later = vec![plain_request(2, Method::Get, 0, 300), plain_request(3, Method::Post, 9, 9)];
    scenario.connections.extend(plain_scenario(later, Ending::Closes).connections);
    scenario.connections[1].client = 1;
    assert!(scenario.must_succeed(&scenario.connections[1]));
    scenario
}

#[test]
fn a_program_that_dies_hurts_only_its_own_request() {
    for framing in [BodyFraming::Length, BodyFraming::Chunks(100)] {
        for how in [BreakKind::Finish, BreakKind::Close, BreakKind::Reset] {
            // Before, in and after its header.
            for at in (0..400).step_by(9) {
                let fault = ResponseFault::Breaks(Break { at, how });
                assert_eq!(
                    fails(&program_scenario(fault, framing)),
                    None,
                    "{framing:?} {how:?} {at}"
                );
            }
        }
        let never = ResponseFault::Breaks(Break { at: 0, how: BreakKind::Stop });
        assert_eq!(fails(&program_scenario(never, framing)), None);
    }
}

#[test]
fn a_program_that_sends_wrong_records_hurts_only_its_own_request() {
    let mut faults: Vec<_> = (0..11).map(ResponseFault::ProgramRecords).collect();
    faults.extend((0..10).map(ResponseFault::ProgramHeader));
    faults.extend((0..340).step_by(20).map(ResponseFault::EarlyEnd));
    for fault in faults {
        let mut scenario = program_scenario(fault, BodyFraming::Length);
        for errors in [0, 200_000] {
            let responses = scenario.connections.iter_mut().flat_map(|it| &mut it.requests);
            responses.for_each(|request| request.response.errors = errors);
            assert_eq!(fails(&scenario), None, "{fault:?} with {errors} bytes of standard error");
        }
    }
}

/// Regression test: the end of an empty chunked body was sent twice.
#[test]
fn an_empty_chunked_body_ends_once_for_a_program() {
    let mut post = plain_request(1, Method::Post, 0, 5);
    post.body.chunk = Some(16);
    let mut scenario = plain_scenario(vec![post], Ending::Closes);
    scenario.proxy.fastcgi = true;
    assert_eq!(fails(&scenario), None);
}

/// Returns a scenario of two clients of a folder. The second one must be served, whatever happens
/// to the file of the first one, which reads slowly.
fn folder_scenario(faults: SimFolderFaults, change: Option<ChangeKind>) -> RandomScenario {
    let files = |id: u32, name: usize| -> Vec<_> {
        let file = FileRequest { name, range: None, accept: None, condition: None };
        let get = |id| plain_request(id, Method::Get, 0, 5);
        let mut requests = vec![get(id), get(id + 1), get(id + 2)];
        requests.iter_mut().for_each(|it| (it.file, it.pause_ms) = (Some(file), 2000));
        requests
    };
    let mut scenario = plain_scenario(files(1, 0), Ending::Closes);
    scenario.connections[0].reader = Reader::Slow(60_000, 100);
    scenario.connections.extend(plain_scenario(files(4, 1), Ending::Closes).connections);
    scenario.connections[1].client = 1;
    let name = PlannedName { kind: NameKind::Binary, length: 900_000 };
    scenario.folder = Some(ServedFolder {
        names: vec![name, name],
        changes: change
            .into_iter()
            .map(|kind| PlannedChange { name: 0, at_ms: 2500, kind })
            .collect(),
        check_s: 1,
        clock_unit_ns: 10_000_000,
        memory_bytes: 100_000,
        faults: SimFolderFaults { waits: 2, short: 2, ..SimFolderFaults::default() },
        faulty: Some((0, faults)),
    });
    assert!(scenario.must_succeed(&scenario.connections[1]));
    scenario
}

#[test]
fn a_fault_of_a_file_hurts_only_its_own_requests() {
    let none = SimFolderFaults::default();
    for faults in [
        none,
        SimFolderFaults { io_errors: 1, ..none },
        SimFolderFaults { io_errors: 9, ..none },
        SimFolderFaults { no_descriptors: 2, ..none },
        SimFolderFaults { short: 1, waits: 1, ..none },
    ] {
        let outcome = play_random(&folder_scenario(faults, None), false);
        assert_eq!(outcome.failure, None, "{faults:?}");
        assert!(outcome.coverage["client: got a file"] >= 3, "{:?}", outcome.coverage);
    }
}

#[test]
fn a_file_that_changes_while_it_is_sent_hurts_only_its_own_requests() {
    for memory_bytes in [0, 1 << 20] {
        for secured in [false, true] {
            for (change, class) in [
                (ChangeKind::Truncate(1000), "client: sees a file cut"),
                (ChangeKind::Rewrite(1000), "client: sees a file cut"),
                (ChangeKind::Rewrite(900_000), "file: of several versions"),
                (ChangeKind::Rewrite(1_000_000), "file: of several versions"),
                (ChangeKind::Replace(1000), "client: got a file"),
            ] {
                let mut scenario = folder_scenario(SimFolderFaults::default(), Some(change));
                scenario.folder.iter_mut().for_each(|folder| folder.memory_bytes = memory_bytes);
                scenario.proxy.secured = secured;
                let outcome = play_random(&scenario, false);
                assert_eq!(outcome.failure, None, "{change:?}");
                // The cache has the bytes of a short file before they change.
                let is_seen = outcome.coverage.contains_key(class) || memory_bytes > 0;
                assert!(is_seen, "{change:?} {:?}", outcome.coverage);
            }
        }
    }
}

/// The failure is made up here. The shrunk scenario keeps what it depends on, and loses everything
/// else.
#[test]
fn a_failing_scenario_is_shrunk_to_what_its_failure_needs() {
    let mut scenario = random_scenario(5);
    let beside = scenario.connections.len();
    let mut wrong = plain_request(9000, Method::Post, 7000, 300);
    wrong.response.delay_ms = 50;
    let with_wrong =
        plain_scenario(vec![plain_request(9001, Method::Get, 0, 10), wrong], Ending::Closes);
    scenario.connections.extend(with_wrong.connections);
    assert!(beside > 1, "there is something to lose");
    // As if every POST of more than a thousand bytes got a wrong response.
    let plays = |scenario: &RandomScenario| -> Option<Failure> {
        let requests = scenario.connections.iter().flat_map(|connection| &connection.requests);
        let mut posts = requests.filter(|it| it.method == Method::Post && it.body.length > 1000);
        posts.next_back().map(|it| Failure { kind: "test", details: format!("POST {}", it.id) })
    };
    let failure = plays(&scenario).expect("it was made to fail");
    let (small, failure) = shrink(&scenario, &failure, Duration::from_secs(60), &plays);
    assert_eq!(failure.kind, "test");
    assert_eq!(small.connections.len(), 1, "{small}");
    let [post] = &small.connections[0].requests[..] else { panic!("{small}") };
    assert_eq!(post.method, Method::Post);
    assert!((1001..=2000).contains(&post.body.length), "{small}");
    assert_eq!((post.response.delay_ms, post.response.length), (0, 0), "{small}");
    assert_eq!((small.origins.len(), small.world), (1, Faults::None), "{small}");
}

/// The checks have to report a well-behaved connection that is not served, and to distinguish a
/// reset from an orderly end.
#[test]
fn wrong_behaviour_is_reported() {
    // A well-behaved client may not get 504.
    let mut scenario = plain_scenario(vec![plain_request(1, Method::Get, 0, 5)], Ending::Closes);
    assert_eq!(fails(&scenario), None);
    scenario.connections[0].requests[0].response.delay_ms = 100_000;
    let failure = fails(&scenario).expect("a delay beyond `first_byte_ms`");
    assert_eq!(failure.kind, "unserved", "{}", failure.details);
    // A body that ends with its connection, and is cut.
    let mut scenario = plain_scenario(vec![plain_request(1, Method::Get, 0, 5)], Ending::Closes);
    let response = &mut scenario.connections[0].requests[0].response;
    response.framing = BodyFraming::UntilClose;
    response.fault = Some(ResponseFault::Breaks(Break { at: 52, how: BreakKind::Reset }));
    assert_eq!(fails(&scenario), None, "a reset does not look complete");
}
