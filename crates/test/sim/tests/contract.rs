//! Every breach of the engine's contract panics in the simulator, with the reason. Whatever a
//! caller does not release is listed.

use std::time::Duration;

use millrace_engine::{
    Address, Buffer, Completion, CompletionEvent, Engine, Fd, Instant, ShutdownHow, Token,
    TokenKind,
};
use millrace_sim::{Actor, Faults, RunOutcome, SimEngine, SimWorker, World, run};

/// An idle worker with one client, since most rules need a connection.
struct Idle {
    engine: SimEngine,
    accepted: Option<Fd>,
    deadline: Option<Instant>,
}

impl SimWorker for Idle {
    fn run_turn(&mut self) -> bool {
        self.engine.submit_and_wait(self.deadline);
        while let Some(Completion { event, .. }) = self.engine.next_completion() {
            if let CompletionEvent::Accepted(Ok((fd, _))) = event {
                self.accepted = Some(fd);
            }
        }
        self.accepted.is_none()
    }
}

const TOKEN: Token = Token::new(TokenKind::Client, 0, 0);

/// An engine with one accepted connection; the client has sent three bytes.
fn connected(faults: Faults) -> (World, SimEngine, Fd) {
    let world = World::new(1, faults);
    let mut engine = world.engine(1_000_000);
    let listener =
        engine.adopt(world.listen(&Address::Tcp("127.0.0.1:0".parse().expect("an address"))));
    let listener = listener.expect("a listener is adopted");
    engine.accept(&listener, Token::new(TokenKind::Listener, 0, 0));
    let client = world.connect(&engine.listener_address(&listener), None);
    let mut idle = Idle { engine, accepted: None, deadline: None };
    let second = Duration::from_secs(1);
    assert_eq!(run(&world, &mut [&mut idle], &mut [], second, &mut |_| false), RunOutcome::Done);
    world.write(client, b"abc").expect("the client is connected");
    let mut nobody: [&mut dyn Actor; 0] = [];
    run(&world, &mut [], &mut nobody, second, &mut |_| false);
    idle.engine.close(listener);
    (world, idle.engine, idle.accepted.expect("it was accepted"))
}

#[test]
fn what_a_killed_process_has_open_is_closed() {
    let (world, mut engine, fd) = connected(Faults::None);
    engine.recv(&fd, 10, TOKEN);
    drop(engine);
    world.kill_engines();
    assert_eq!(world.leaks(), Vec::<String>::new());
}

#[test]
#[should_panic(expected = "outstanding in the same direction")]
fn two_receives() {
    let (_, mut engine, fd) = connected(Faults::None);
    engine.recv(&fd, 10, TOKEN);
    engine.recv(&fd, 10, TOKEN);
}

#[test]
#[should_panic(expected = "while a send is outstanding")]
fn two_sends() {
    let (_, mut engine, fd) = connected(Faults::None);
    engine.send(&fd, &[b"a"], TOKEN);
    engine.send(&fd, &[b"b"], TOKEN);
}

#[test]
#[should_panic(expected = "which is closed")]
fn use_after_close() {
    let (_, mut engine, fd) = connected(Faults::None);
    let again = Fd(fd.0);
    engine.close(fd);
    engine.recv(&again, 10, TOKEN);
}

#[test]
#[should_panic(expected = "1 buffers were not recycled")]
fn a_buffer_kept_over_the_turn() {
    let (_, mut engine, fd) = connected(Faults::None);
    engine.recv(&fd, 10, TOKEN);
    engine.submit_and_wait(None);
    let completion = engine.next_completion().unwrap();
    assert!(
        matches!(&completion.event, CompletionEvent::Received(Ok(buffer)) if &buffer[..] == b"abc")
    );
    engine.submit_and_wait(None);
}

#[test]
#[should_panic(expected = "with a send outstanding")]
fn shutdown_before_the_send_ended() {
    let (_, mut engine, fd) = connected(Faults::None);
    engine.send(&fd, &[b"a"], TOKEN);
    engine.shutdown(&fd, ShutdownHow::Write);
}

#[test]
#[should_panic(expected = "with 3 bytes in it")]
fn a_full_pipe_is_filled() {
    let (_, mut engine, fd) = connected(Faults::None);
    let (_from, into) = engine.pipe().unwrap();
    engine.splice(&fd, &into, 10, TOKEN);
    engine.submit_and_wait(None);
    assert!(matches!(engine.next_completion().unwrap().event, CompletionEvent::Spliced(Ok(3))));
    engine.splice(&fd, &into, 10, TOKEN);
}

#[test]
#[should_panic(expected = "after its shutdown")]
fn a_send_after_the_end() {
    let (_, mut engine, fd) = connected(Faults::None);
    engine.shutdown(&fd, ShutdownHow::Write);
    engine.send(&fd, &[b"a"], TOKEN);
}

#[test]
#[should_panic(expected = "with a receive outstanding")]
fn an_end_of_both_directions_beside_a_receive() {
    let (_, mut engine, fd) = connected(Faults::None);
    engine.recv(&fd, 10, TOKEN);
    engine.shutdown(&fd, ShutdownHow::Both);
}

#[test]
#[should_panic(expected = "a receive of 0 bytes")]
fn a_receive_of_nothing() {
    let (_, mut engine, fd) = connected(Faults::None);
    engine.recv(&fd, 0, TOKEN);
}

#[test]
#[should_panic(expected = "that was not lent")]
fn a_buffer_given_back_twice() {
    let (_, mut engine, _fd) = connected(Faults::None);
    engine.recycle(Buffer::default());
}

#[test]
#[should_panic(expected = "empty")]
fn an_empty_pipe_is_emptied() {
    let (_, mut engine, fd) = connected(Faults::None);
    let (from, _into) = engine.pipe().unwrap();
    engine.splice(&from, &fd, 10, TOKEN);
}

#[test]
#[should_panic(expected = "with another operation outstanding")]
fn a_pipe_filled_beside_a_receive() {
    let (_, mut engine, fd) = connected(Faults::None);
    let (_from, into) = engine.pipe().unwrap();
    engine.recv(&fd, 10, TOKEN);
    engine.try_splice_in(&fd, &into, 10);
}

#[test]
#[should_panic(expected = "which belongs to")]
fn the_descriptor_of_another_engine() {
    let (world, _engine, fd) = connected(Faults::None);
    world.engine(1000).recv(&fd, 10, TOKEN);
}

#[test]
#[should_panic(expected = "with a send outstanding")]
fn a_connection_handed_over_beside_a_send() {
    let (_, mut engine, fd) = connected(Faults::None);
    engine.send(&fd, &[b"a"], TOKEN);
    engine.detach(fd);
}

#[test]
#[should_panic(expected = "which is not a listener")]
fn a_connection_that_is_to_accept_no_more() {
    let (_, mut engine, fd) = connected(Faults::None);
    engine.cancel_accept(&fd);
}

#[test]
#[should_panic(expected = "whole records")]
fn half_a_record() {
    let (_, mut engine, _fd) = connected(Faults::None);
    engine.log(b"half");
}

#[test]
#[should_panic(expected = "spins")]
fn a_worker_that_never_sleeps() {
    let world = World::new(1, Faults::None);
    let engine = world.engine(1000);
    let mut idle = Idle { engine, accepted: None, deadline: Some(Instant::default()) };
    run(&world, &mut [&mut idle], &mut [], Duration::from_secs(3600), &mut |_| false);
}

#[test]
fn what_is_not_closed_is_reported() {
    let (world, mut engine, fd) = connected(Faults::None);
    engine.recv(&fd, 10, TOKEN);
    engine.submit_and_wait(None);
    let completion = engine.next_completion();
    assert!(completion.is_some());
    let leaks = world.leaks().join("\n");
    assert!(leaks.contains("accepting side, of Engine(0)"), "{leaks}");
    assert!(leaks.contains("1 buffers lent"), "{leaks}");
}
