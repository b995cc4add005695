//! Every breach of the engine's contract panics in the simulator, with the reason, and leaks are
//! listed.

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
    let mut no_actors: [&mut dyn Actor; 0] = [];
    run(&world, &mut [], &mut no_actors, second, &mut |_| false);
    idle.engine.close(listener);
    (world, idle.engine, idle.accepted.expect("it was accepted"))
}

#[test]
fn killing_a_process_closes_its_descriptors() {
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
fn a_buffer_not_recycled_in_its_turn() {
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
fn shutdown_with_a_send_outstanding() {
    let (_, mut engine, fd) = connected(Faults::None);
    engine.send(&fd, &[b"a"], TOKEN);
    engine.shutdown(&fd, ShutdownHow::Write);
}

#[test]
#[should_panic(expected = "with 3 bytes in it")]
fn splice_into_a_pipe_with_bytes() {
    let (_, mut engine, fd) = connected(Faults::None);
    let (_from, into) = engine.pipe().unwrap();
    engine.splice(&fd, &into, 10, TOKEN);
    engine.submit_and_wait(None);
    assert!(matches!(engine.next_completion().unwrap().event, CompletionEvent::Spliced(Ok(3))));
    engine.splice(&fd, &into, 10, TOKEN);
}

#[test]
#[should_panic(expected = "after its shutdown")]
fn send_after_shutdown() {
    let (_, mut engine, fd) = connected(Faults::None);
    engine.shutdown(&fd, ShutdownHow::Write);
    engine.send(&fd, &[b"a"], TOKEN);
}

#[test]
#[should_panic(expected = "with a receive outstanding")]
fn shutdown_of_both_directions_with_a_receive_outstanding() {
    let (_, mut engine, fd) = connected(Faults::None);
    engine.recv(&fd, 10, TOKEN);
    engine.shutdown(&fd, ShutdownHow::Both);
}

#[test]
#[should_panic(expected = "a receive of 0 bytes")]
fn receive_of_0_bytes() {
    let (_, mut engine, fd) = connected(Faults::None);
    engine.recv(&fd, 0, TOKEN);
}

#[test]
#[should_panic(expected = "that was not lent")]
fn recycle_without_a_lent_buffer() {
    let (_, mut engine, _fd) = connected(Faults::None);
    engine.recycle(Buffer::default());
}

#[test]
#[should_panic(expected = "empty")]
fn splice_from_an_empty_pipe() {
    let (_, mut engine, fd) = connected(Faults::None);
    let (from, _into) = engine.pipe().unwrap();
    engine.splice(&from, &fd, 10, TOKEN);
}

#[test]
#[should_panic(expected = "with another operation outstanding")]
fn splice_with_a_receive_outstanding() {
    let (_, mut engine, fd) = connected(Faults::None);
    let (_from, into) = engine.pipe().unwrap();
    engine.recv(&fd, 10, TOKEN);
    engine.try_splice_in(&fd, &into, 10);
}

#[test]
#[should_panic(expected = "which belongs to")]
fn use_of_another_engines_descriptor() {
    let (world, _engine, fd) = connected(Faults::None);
    world.engine(1000).recv(&fd, 10, TOKEN);
}

#[test]
#[should_panic(expected = "with a send outstanding")]
fn detach_with_a_send_outstanding() {
    let (_, mut engine, fd) = connected(Faults::None);
    engine.send(&fd, &[b"a"], TOKEN);
    engine.detach(fd);
}

#[test]
#[should_panic(expected = "which is not a listener")]
fn cancel_accept_on_a_connection() {
    let (_, mut engine, fd) = connected(Faults::None);
    engine.cancel_accept(&fd);
}

#[test]
#[should_panic(expected = "whole records")]
fn log_of_half_a_record() {
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
fn leaks_are_reported() {
    let (world, mut engine, fd) = connected(Faults::None);
    engine.recv(&fd, 10, TOKEN);
    engine.submit_and_wait(None);
    let completion = engine.next_completion();
    assert!(completion.is_some());
    let leaks = world.leaks().join("\n");
    assert!(leaks.contains("accepting side, of Engine(0)"), "{leaks}");
    assert!(leaks.contains("1 buffers lent"), "{leaks}");
}
