//! Proves that `make icount` finds a parser whose work is quadratic in the size of a message. In
//! the test, such a parser reads each request in addition to the worker, and its work is counted
//! with the worker's.

use millrace_http1::split_list;
use millrace_tests::growth::{
    Cost, FieldPlace, FieldShape, Size, cases, measure, play_from_environment,
};

#[test]
#[ignore = "run under callgrind by the other test"]
fn play_sound() {
    play_from_environment(|_| {});
}

#[test]
#[ignore = "run under callgrind by the other test"]
fn play_faulty() {
    play_from_environment(reread);
}

/// Searches the list of Via again for each of its members.
fn reread(request: &[u8]) {
    let is_via = |line: &&[u8]| line.get(..4).is_some_and(|it| it.eq_ignore_ascii_case(b"via:"));
    let hops =
        || request.split(|&byte| byte == b'\n').filter(is_via).flat_map(|it| split_list(&it[4..]));
    for at in 0..hops().count() {
        std::hint::black_box(hops().nth(at));
    }
}

/// Returns the costs of `Via` in two shapes. `player` names the ignored test that plays them under
/// callgrind.
fn costs(player: &str) -> Vec<Cost> {
    const SHAPES: [FieldShape; 2] = [FieldShape::Weighted, FieldShape::Lines];
    let is_wanted = |case: &(String, FieldShape)| case.0 == "via" && SHAPES.contains(&case.1);
    let all = cases().into_iter().enumerate().filter(|(_, case)| is_wanted(case));
    let numbers: Vec<usize> = all.map(|(number, _)| number).collect();
    let player = ["--exact", player, "--ignored", "--test-threads=1"];
    measure(&player, &numbers, Size::SMALL).expect("callgrind counts")
}

#[test]
fn a_quadratic_parser_is_found() {
    let sound = costs("play_sound");
    assert!(!sound.iter().any(Cost::is_too_much), "{:?}", sound.iter().find(|it| it.is_too_much()));
    let faulty = costs("play_faulty");
    let found: Vec<&Cost> = faulty.iter().filter(|cost| cost.is_too_much()).collect();
    found.iter().for_each(|cost| println!("{cost}"));
    for place in [
        FieldPlace::Request,
        FieldPlace::RequestHit,
        FieldPlace::Upgrade,
        FieldPlace::Forward,
        FieldPlace::Routed,
    ] {
        assert!(found.iter().any(|cost| cost.place == place), "not found in {place:?}");
    }
    assert!(found.iter().all(|cost| cost.growth() < 4.5), "quadratic work grows at most fourfold");
}
