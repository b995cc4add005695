//! What a flow says to do next, and what it makes of what came of it.

use super::*;

const KEEP: Keep = Keep { min2read: 10, max2cache: 30 };

fn one_way(first: usize, limit: Option<u64>, keep: Option<Keep>) -> Flow {
    Flow::new(Side::Fd0, first, limit, keep, Close::NotForwarded)
}

#[test]
fn a_head_and_the_body_behind_it_go_in_one_segment() {
    let mut flow = one_way(5, Some(100), None);
    assert_eq!(flow.step(), Step::Fill { max: 100 });
    flow.filled(60);
    assert_eq!(flow.step(), Step::First { more: true });
    flow.first_sent(5);
    assert_eq!(flow.step(), Step::Drain { max: 60 });
    flow.drained(20);
    flow.sink_waits();
    assert_eq!(flow.step(), Step::Wait(Wait::Sink));
    flow.sink_ready();
    flow.drained(40);
    assert_eq!(flow.step(), Step::Fill { max: 40 });
    flow.filled(40);
    flow.drained(40);
    assert_eq!((flow.step(), flow.end()), (Step::Over, Some(End::Limit)));
    assert_eq!(flow.forwarded, 100);
}

#[test]
fn a_head_waits_for_no_body() {
    let mut flow = one_way(5, None, None);
    assert_eq!(flow.step(), Step::Fill { max: PIPE_BYTES });
    flow.source_waits();
    assert_eq!(flow.step(), Step::First { more: false });
    flow.first_sent(5);
    assert_eq!(flow.step(), Step::Wait(Wait::Source));
    flow.source_ready();
    flow.source_ended();
    assert_eq!(flow.end(), Some(End::Closed));
}

#[test]
fn without_a_pipe_bytes_are_copied_behind_the_head_and_a_pipe_is_tried_again() {
    let mut flow = one_way(5, None, None);
    flow.use_pipe(false);
    assert_eq!(flow.step(), Step::First { more: false });
    flow.first_sent(5);
    assert_eq!(flow.step(), Step::Copy { max: PIPE_BYTES });
    flow.sink_waits();
    assert_eq!(flow.step(), Step::Wait(Wait::Sink));
    flow.sink_ready();
    flow.sent(7);
    assert_eq!((flow.forwarded, flow.step()), (7, Step::Fill { max: PIPE_BYTES }));
}

#[test]
fn what_is_kept_has_a_bound_and_a_read_goes_on_from_there() {
    let mut flow = one_way(0, None, Some(KEEP));
    assert_eq!(flow.step(), Step::Fill { max: 30 });
    flow.filled(30);
    assert_eq!(flow.step(), Step::Tee { max: 30 });
    flow.teed(25);
    assert_eq!(flow.step(), Step::Drain { max: 25 });
    flow.drained(9);
    assert!(!flow.is_readable(), "less than min2read was forwarded");
    flow.drained(16);
    assert!(flow.is_readable());
    assert_eq!((flow.kept(), flow.step()), (25, Step::Tee { max: 5 }));
    flow.teed(5);
    flow.drained(5);
    assert_eq!(flow.step(), Step::Wait(Wait::Reader));
    flow.read(29);
    assert!(!flow.is_readable());
    assert_eq!(flow.step(), Step::Fill { max: 29 });
    flow.source_ended();
    assert!(flow.is_readable() && flow.end().is_none(), "the last byte was not read");
    flow.read(1);
    assert_eq!(flow.end(), Some(End::Closed));
}

#[test]
fn a_full_pipe_of_kept_bytes_is_for_the_reader_to_empty() {
    let mut flow = one_way(0, None, Some(KEEP));
    flow.filled(8);
    flow.teed(4);
    flow.drained(4);
    flow.crowded();
    assert_eq!(flow.step(), Step::Wait(Wait::Reader));
    assert!(flow.is_readable(), "though it is less than min2read");
    flow.read(1);
    assert_eq!(flow.step(), Step::Tee { max: 4 });
}

#[test]
fn a_copy_goes_on_when_the_sink_is_gone() {
    let mut flow = one_way(3, Some(40), Some(KEEP));
    flow.filled(20);
    flow.first_sent(3);
    flow.teed(15);
    flow.drained(5);
    flow.sink_gone(Errno::CONNRESET);
    flow.sink_gone(Errno::PIPE);
    assert_eq!((flow.kept(), flow.step()), (15, Step::Discard { max: 10 }));
    flow.discarded(10);
    assert_eq!(flow.step(), Step::Shift { max: 5 });
    flow.shifted(5);
    assert_eq!(flow.step(), Step::Fill { max: 10 });
    flow.use_pipe(false);
    assert_eq!(flow.step(), Step::Receive { max: 10 });
    flow.received(10);
    assert_eq!(flow.step(), Step::Wait(Wait::Reader));
    flow.read(30);
    flow.received(10);
    assert!(flow.is_readable() && flow.end().is_none());
    flow.read(10);
    let aborted = End::Aborted { side: Side::Fd1, error: Errno::CONNRESET };
    assert_eq!((flow.end(), flow.forwarded), (Some(aborted), 5));
}

#[test]
fn close_goes_on_behind_the_last_byte_if_it_is_forwarded() {
    let mut flow = Flow::new(Side::Fd1, 0, None, None, Close::Forwarded);
    flow.filled(3);
    flow.drained(3);
    flow.source_ended();
    assert_eq!(flow.step(), Step::Shut);
    flow.shut();
    assert_eq!((flow.step(), flow.end()), (Step::Over, Some(End::Closed)));
    flow.sink_gone(Errno::CONNRESET);
    assert_eq!(flow.end(), Some(End::Closed), "whatever comes later");
}

#[test]
fn what_came_before_an_abort_is_forwarded_and_an_end_behind_one_is_none() {
    let mut flow = one_way(0, Some(9), None);
    flow.filled(4);
    flow.source_broke(Errno::CONNRESET);
    assert_eq!(flow.step(), Step::Drain { max: 4 });
    flow.drained(4);
    let aborted = End::Aborted { side: Side::Fd0, error: Errno::CONNRESET };
    assert_eq!(flow.end(), Some(aborted));
    let mut flow = one_way(0, None, None);
    flow.source_breaks(Errno::CONNRESET);
    flow.filled(4);
    flow.drained(4);
    flow.source_ended();
    assert_eq!(flow.end(), Some(aborted));
}

#[test]
fn without_memory_there_is_a_pause_and_then_the_same_step() {
    let mut flow = one_way(0, None, Some(KEEP));
    flow.ran_short();
    assert_eq!(flow.step(), Step::Wait(Wait::Memory));
    flow.source_ready();
    flow.sink_ready();
    assert!(flow.is_short(), "whatever the connections bring");
    flow.has_paused();
    assert_eq!(flow.step(), Step::Fill { max: 30 });
    flow.filled(4);
    flow.ran_short();
    flow.has_paused();
    assert_eq!(flow.step(), Step::Tee { max: 4 });
    flow.ran_short();
    flow.stop();
    assert_eq!(flow.step(), Step::Tee { max: 4 }, "once more");
}

#[test]
fn what_is_stopped_takes_nothing_more() {
    let mut flow = one_way(0, None, None);
    flow.filled(4);
    flow.stop();
    assert_eq!(flow.step(), Step::Drain { max: 4 });
    flow.drained(4);
    assert_eq!(flow.step(), Step::Over);
}
