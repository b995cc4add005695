//! Two workers, each with an engine in its own thread. One accepts, and hands every other
//! connection over by mailbox.

use std::collections::HashMap;
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;

use super::common::*;
use crate::Tested;
use millrace_engine::{
    Completion, CompletionEvent, Engine, EventWaker, Fd, PeerMailboxes, ShutdownHow, mailbox_mesh,
};

const CONNECTIONS: usize = 400;
const CLIENTS: usize = 4;

/// Sends back the bytes of each connection, until its end.
struct Echo {
    engine: Tested,
    mailboxes: PeerMailboxes<OwnedFd, EventWaker>,
    /// Connections to hand over that the full mailbox has not taken yet.
    waiting: VecDeque<OwnedFd>,
    connections: HashMap<u32, Fd>,
    /// Number of connections that this worker has served or handed over.
    finished: usize,
    next_token: u32,
}

impl Echo {
    fn new(mailboxes: PeerMailboxes<OwnedFd, EventWaker>) -> Self {
        let engine = engine();
        mailboxes.set_waker(&engine.waker());
        Self {
            engine,
            mailboxes,
            waiting: VecDeque::new(),
            connections: HashMap::new(),
            finished: 0,
            next_token: 1,
        }
    }

    fn begin(&mut self, fd: Fd) {
        self.engine.recv(&fd, 1000, token(self.next_token));
        self.connections.insert(self.next_token, fd);
        self.next_token += 1;
    }

    fn handle(&mut self, completion: Completion) {
        let number = completion.token.slot();
        match completion.event {
            CompletionEvent::Received(buffer) => {
                let buffer = buffer.unwrap();
                let fd = &self.connections[&number];
                if buffer.is_empty() {
                    self.engine.shutdown(fd, ShutdownHow::Write);
                    self.engine.close(self.connections.remove(&number).unwrap());
                    self.finished += 1;
                } else {
                    self.engine.send(fd, &[&buffer], completion.token);
                }
                self.engine.recycle(buffer);
            }
            CompletionEvent::Sent(result) => {
                result.unwrap();
                self.engine.recv(&self.connections[&number], 1000, completion.token);
            }
            // Every other connection stays here; the others are handed over.
            CompletionEvent::Accepted(result) => {
                let fd = result.unwrap().0;
                if (self.finished + self.connections.len()).is_multiple_of(2) {
                    self.begin(fd);
                } else {
                    self.finished += 1;
                    let detached = self.engine.detach(fd);
                    self.waiting.push_back(detached);
                }
            }
            CompletionEvent::Woken => {
                let mut arrived = Vec::new();
                self.mailboxes.drain(|_, detached| arrived.push(detached));
                for detached in arrived {
                    let fd = self.engine.adopt(detached).unwrap();
                    self.begin(fd);
                }
            }
            other => panic!("{other:?}"),
        }
    }

    /// Runs turns until `count` connections were served or handed over. Returns the number of
    /// connections that this worker served itself.
    fn run(mut self, into: usize, count: usize) -> usize {
        while self.finished < count || !self.waiting.is_empty() {
            // A full mailbox is retried at once, since the sender is not notified when it has room.
            let deadline = (!self.waiting.is_empty()).then(|| self.engine.now());
            self.engine.submit_and_wait(deadline);
            while let Some(completion) = self.engine.next_completion() {
                self.handle(completion);
            }
            while let Some(detached) = self.waiting.pop_front() {
                if let Err(refused) = self.mailboxes.send(into, detached) {
                    self.waiting.push_front(refused);
                    break;
                }
            }
            self.mailboxes.flush();
        }
        assert!(self.connections.is_empty());
        self.next_token as usize - 1
    }
}

fn exchange(address: SocketAddr, number: usize) {
    let mut stream = TcpStream::connect(address).unwrap();
    for round in 0..3 {
        let request = format!("{number} {round}");
        stream.write_all(request.as_bytes()).unwrap();
        let mut response = vec![0; request.len()];
        stream.read_exact(&mut response).unwrap();
        assert_eq!(response, request.as_bytes());
    }
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
}

#[test]
fn connections_are_served_by_the_worker_that_gets_them() {
    let mut by_worker = mailbox_mesh(2, 4);
    let (second, first) = (by_worker.pop().unwrap(), by_worker.pop().unwrap());
    let mut accepting = Echo::new(first);
    let (_listener, address) = listener(&mut accepting.engine);
    let serving = std::thread::spawn(move || {
        // Messages sent before this thread set its waker caused no wake, so it drains once.
        let mut worker = Echo::new(second);
        worker.handle(Completion { token: token(0), event: CompletionEvent::Woken });
        worker.run(0, CONNECTIONS / 2)
    });
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            std::thread::spawn(move || {
                (client..CONNECTIONS).step_by(CLIENTS).for_each(|number| exchange(address, number));
            })
        })
        .collect();
    assert_eq!(accepting.run(1, CONNECTIONS), CONNECTIONS / 2);
    clients.into_iter().for_each(|client| client.join().unwrap());
    assert_eq!(serving.join().unwrap(), CONNECTIONS / 2);
}
