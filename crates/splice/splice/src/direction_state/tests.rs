//! Tests of the actions and transitions of a direction.

use super::*;

const KEEP: KeepCopy = KeepCopy { min2read: 10, max2cache: 30 };

fn one_way(prefix: usize, limit: Option<u64>, keep_copy: Option<KeepCopy>) -> DirectionState {
    DirectionState::new(Side::Fd0, prefix, limit, keep_copy, HalfClose::NotForwarded)
}

#[test]
fn prefix_and_first_payload_are_sent_together() {
    let mut state = one_way(5, Some(100), None);
    assert_eq!(state.next_action(), Action::Fill { max: 100 });
    state.note_filled(60);
    assert_eq!(state.next_action(), Action::SendPrefix { more: true });
    state.note_prefix_sent(5);
    assert_eq!(state.next_action(), Action::Drain { max: 60 });
    state.note_drained(20);
    state.note_sink_full();
    assert_eq!(state.next_action(), Action::Wait(WaitFor::Sink));
    state.note_sink_ready();
    state.note_drained(40);
    assert_eq!(state.next_action(), Action::Fill { max: 40 });
    state.note_filled(40);
    state.note_drained(40);
    assert_eq!((state.next_action(), state.end()), (Action::Done, Some(End::Limit)));
    assert_eq!(state.forwarded, 100);
}

#[test]
fn the_prefix_is_sent_without_payload() {
    let mut state = one_way(5, None, None);
    assert_eq!(state.next_action(), Action::Fill { max: PIPE_BYTES });
    state.note_source_empty();
    assert_eq!(state.next_action(), Action::SendPrefix { more: false });
    state.note_prefix_sent(5);
    assert_eq!(state.next_action(), Action::Wait(WaitFor::Source));
    state.note_source_ready();
    state.note_source_end();
    assert_eq!(state.end(), Some(End::Closed));
}

#[test]
fn without_a_pipe_bytes_are_copied_and_a_pipe_is_tried_again() {
    let mut state = one_way(5, None, None);
    state.set_use_pipe(false);
    assert_eq!(state.next_action(), Action::SendPrefix { more: false });
    state.note_prefix_sent(5);
    assert_eq!(state.next_action(), Action::Copy { max: PIPE_BYTES });
    state.note_sink_full();
    assert_eq!(state.next_action(), Action::Wait(WaitFor::Sink));
    state.note_sink_ready();
    state.note_sent(7);
    assert_eq!((state.forwarded, state.next_action()), (7, Action::Fill { max: PIPE_BYTES }));
}

#[test]
fn the_copy_is_bounded_and_a_read_restarts_forwarding() {
    let mut state = one_way(0, None, Some(KEEP));
    assert_eq!(state.next_action(), Action::Fill { max: 30 });
    state.note_filled(30);
    assert_eq!(state.next_action(), Action::Tee { max: 30 });
    state.note_teed(25);
    assert_eq!(state.next_action(), Action::Drain { max: 25 });
    state.note_drained(9);
    assert!(!state.is_readable(), "less than min2read was forwarded");
    state.note_drained(16);
    assert!(state.is_readable());
    assert_eq!((state.readable_bytes(), state.next_action()), (25, Action::Tee { max: 5 }));
    state.note_teed(5);
    state.note_drained(5);
    assert_eq!(state.next_action(), Action::Wait(WaitFor::Reader));
    state.note_read(29);
    assert!(!state.is_readable());
    assert_eq!(state.next_action(), Action::Fill { max: 29 });
    state.note_source_end();
    assert!(state.is_readable() && state.end().is_none(), "the last byte was not read");
    state.note_read(1);
    assert_eq!(state.end(), Some(End::Closed));
}

#[test]
fn a_full_copy_is_readable_below_min2read() {
    let mut state = one_way(0, None, Some(KEEP));
    state.note_filled(8);
    state.note_teed(4);
    state.note_drained(4);
    state.note_copy_full();
    assert_eq!(state.next_action(), Action::Wait(WaitFor::Reader));
    assert!(state.is_readable(), "below min2read");
    state.note_read(1);
    assert_eq!(state.next_action(), Action::Tee { max: 4 });
}

#[test]
fn the_copy_continues_after_the_sink_failed() {
    let mut state = one_way(3, Some(40), Some(KEEP));
    state.note_filled(20);
    state.note_prefix_sent(3);
    state.note_teed(15);
    state.note_drained(5);
    state.note_sink_failed(Errno::CONNRESET);
    state.note_sink_failed(Errno::PIPE);
    assert_eq!((state.readable_bytes(), state.next_action()), (15, Action::Discard { max: 10 }));
    state.note_discarded(10);
    assert_eq!(state.next_action(), Action::MoveToCopy { max: 5 });
    state.note_moved_to_copy(5);
    assert_eq!(state.next_action(), Action::Fill { max: 10 });
    state.set_use_pipe(false);
    assert_eq!(state.next_action(), Action::Receive { max: 10 });
    state.note_received(10);
    assert_eq!(state.next_action(), Action::Wait(WaitFor::Reader));
    state.note_read(30);
    state.note_received(10);
    assert!(state.is_readable() && state.end().is_none());
    state.note_read(10);
    let aborted = End::Aborted { side: Side::Fd1, error: Errno::CONNRESET };
    assert_eq!((state.end(), state.forwarded), (Some(aborted), 5));
}

#[test]
fn the_close_is_forwarded_behind_the_last_byte() {
    let mut state = DirectionState::new(Side::Fd1, 0, None, None, HalfClose::Forwarded);
    state.note_filled(3);
    state.note_drained(3);
    state.note_source_end();
    assert_eq!(state.next_action(), Action::ShutdownWrite);
    state.note_shutdown();
    assert_eq!((state.next_action(), state.end()), (Action::Done, Some(End::Closed)));
    state.note_sink_failed(Errno::CONNRESET);
    assert_eq!(state.end(), Some(End::Closed), "a later error does not count");
}

#[test]
fn bytes_before_an_abort_are_forwarded_and_the_end_is_an_abort() {
    let mut state = one_way(0, Some(9), None);
    state.note_filled(4);
    state.note_source_failed(Errno::CONNRESET);
    assert_eq!(state.next_action(), Action::Drain { max: 4 });
    state.note_drained(4);
    let aborted = End::Aborted { side: Side::Fd0, error: Errno::CONNRESET };
    assert_eq!(state.end(), Some(aborted));
    let mut state = one_way(0, None, None);
    state.set_source_error(Errno::CONNRESET);
    state.note_filled(4);
    state.note_drained(4);
    state.note_source_end();
    assert_eq!(state.end(), Some(aborted));
}

#[test]
fn lack_of_memory_pauses_and_repeats_the_action() {
    let mut state = one_way(0, None, Some(KEEP));
    state.note_out_of_memory();
    assert_eq!(state.next_action(), Action::Wait(WaitFor::Memory));
    state.note_source_ready();
    state.note_sink_ready();
    assert!(state.is_out_of_memory(), "events do not end the pause");
    state.note_pause_end();
    assert_eq!(state.next_action(), Action::Fill { max: 30 });
    state.note_filled(4);
    state.note_out_of_memory();
    state.note_pause_end();
    assert_eq!(state.next_action(), Action::Tee { max: 4 });
    state.note_out_of_memory();
    state.stop();
    assert_eq!(state.next_action(), Action::Tee { max: 4 }, "once more");
}

#[test]
fn a_stopped_direction_takes_no_bytes() {
    let mut state = one_way(0, None, None);
    state.note_filled(4);
    state.stop();
    assert_eq!(state.next_action(), Action::Drain { max: 4 });
    state.note_drained(4);
    assert_eq!(state.next_action(), Action::Done);
}
