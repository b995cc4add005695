//! Proves that `make icount` finds a parser whose work grows with the square of a message: one is
//! planted, and counted as every field is.

use millrace_engine::planted::{Fault, plant};
use millrace_tests::growth::{Cost, Kind, Shape, Size, cases, measure, play_asked};

#[test]
#[ignore = "run under callgrind by the other test"]
fn play_sound() {
    play_asked();
}

#[test]
#[ignore = "run under callgrind by the other test"]
fn play_faulty() {
    plant(Some(Fault::ListReread));
    play_asked();
}

/// What `Via` costs in a few shapes, in the runs of this test.
fn costs(player: &str) -> Vec<Cost> {
    const SHAPES: [Shape; 2] = [Shape::Weighted, Shape::Lines];
    let is_wanted = |case: &(String, Shape)| case.0 == "via" && SHAPES.contains(&case.1);
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
    for kind in [Kind::Request, Kind::RequestHit, Kind::Upgrade, Kind::Forward, Kind::Routed] {
        assert!(found.iter().any(|cost| cost.kind == kind), "not found in {kind:?}");
    }
    assert!(found.iter().all(|cost| cost.growth() < 4.5), "a square is no more than 4 times");
}
