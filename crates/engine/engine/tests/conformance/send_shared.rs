//! Shared bytes, sent by reference or by copying.

use std::cell::Cell;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;

use super::common::*;
use millrace_engine::{Engine, SharedBytes};

/// A part of a file, and its bytes.
#[derive(Clone, Debug)]
struct Part {
    /// `None` if the bytes have to be copied.
    file: Option<Rc<File>>,
    bytes: Rc<Vec<u8>>,
    from: usize,
    file_was_used: Rc<Cell<bool>>,
}

impl Part {
    /// Creates a file that contains `bytes`. The part is its bytes after the first `from` ones.
    fn new(bytes: Vec<u8>, from: usize) -> Self {
        Self {
            file: Some(Rc::new(file_of(&bytes))),
            bytes: Rc::new(bytes),
            from,
            file_was_used: Rc::default(),
        }
    }
}

impl SharedBytes for Part {
    fn bytes(&self) -> &[u8] {
        &self.bytes[self.from..]
    }

    fn file(&self) -> Option<(BorrowedFd<'_>, u64)> {
        let file = self.file.as_ref()?;
        self.file_was_used.set(true);
        Some((file.as_fd(), self.from as u64))
    }

    fn clone_box(&self) -> Box<dyn SharedBytes> {
        Box::new(self.clone())
    }
}

#[test]
fn a_header_and_a_part_of_a_file_arrive_in_order() {
    let mut engine = engine();
    let (fd, mut peer) = pair(&mut engine);
    let part = Part::new(pattern(20_000), 5_000);
    engine.send_shared(&fd, &[b"he", b"ad"], &part, token(1));
    assert_eq!(sent(&mut engine), (token(1), Ok(())));
    assert!(part.file_was_used.get(), "the engine called `file`");
    let mut read = vec![0; 4 + 15_000];
    peer.read_exact(&mut read).unwrap();
    assert_eq!((&read[..4], &read[4..]), (&b"head"[..], part.bytes()));
    assert_eq!((engine.stats().bytes_sent, engine.stats().bytes_zero_copy), (4, 15_000));
    engine.close(fd);
}

#[test]
fn a_header_and_copied_bytes_take_one_call() {
    let mut engine = engine();
    let (fd, mut peer) = pair(&mut engine);
    let part = Part { file: None, ..Part::new(pattern(20_000), 5_000) };
    engine.send_shared(&fd, &[b"he", b"ad"], &part, token(1));
    assert_eq!(sent(&mut engine), (token(1), Ok(())));
    let mut read = vec![0; 4 + 15_000];
    peer.read_exact(&mut read).unwrap();
    assert_eq!((&read[..4], &read[4..]), (&b"head"[..], part.bytes()));
    assert_eq!((engine.stats().sends, engine.stats().bytes_sent), (1, 15_004));
    engine.close(fd);
}

#[test]
fn a_slow_reader_gets_everything_and_no_copy_is_held() {
    let mut engine = engine();
    let (fd, peer) = narrow_pair(&mut engine);
    let part = Part::new(pattern(8 << 20), 0);
    engine.send_shared(&fd, &[], &part, token(1));
    assert!(engine.unsent_bytes(&fd) > 4 << 20, "the kernel takes only a part");
    assert_eq!(engine.budget().used(), 0, "bytes that are not copied are not charged");
    assert_eq!(Rc::strong_count(&part.bytes), 2, "the send holds a reference");
    let expected = part.bytes().to_vec();
    let reading = reading(peer, expected);
    assert_eq!(sent(&mut engine), (token(1), Ok(())));
    assert_eq!((engine.unsent_bytes(&fd), Rc::strong_count(&part.bytes)), (0, 1));
    reading.join().unwrap();
    engine.close(fd);
}

#[test]
fn bytes_without_a_file_are_sent_by_copying_and_not_held_twice() {
    let mut engine = engine();
    let (fd, peer) = narrow_pair(&mut engine);
    let part = Part { file: None, ..Part::new(pattern(8 << 20), 0) };
    engine.send_shared(&fd, &[b"head"], &part, token(1));
    assert!(engine.unsent_bytes(&fd) > 4 << 20, "the kernel takes only a part");
    assert_eq!(engine.budget().used(), 0, "the rest is not copied");
    let expected = [b"head", part.bytes()].concat();
    let reading = reading(peer, expected);
    assert_eq!(sent(&mut engine), (token(1), Ok(())));
    reading.join().unwrap();
    let counters = engine.stats();
    assert_eq!((counters.bytes_sent, counters.bytes_zero_copy), (4 + (8 << 20), 0));
    engine.close(fd);
}

#[test]
fn parts_before_shared_bytes_wait_for_room_too() {
    let mut engine = engine();
    let (fd, peer) = narrow_pair(&mut engine);
    let (before, part) = (pattern(4 << 20), Part::new(pattern(100_000), 1));
    engine.send_shared(&fd, &[&before], &part, token(1));
    assert!(engine.unsent_bytes(&fd) > 100_000);
    assert!(engine.budget().used() > 0, "the parts are copied");
    let expected = [&before, part.bytes()].concat();
    let reading = reading(peer, expected);
    assert_eq!(sent(&mut engine), (token(1), Ok(())));
    reading.join().unwrap();
    engine.close(fd);
    assert_eq!(engine.budget().used(), 0);
}

#[test]
fn closing_ends_a_send_by_reference() {
    let mut engine = engine();
    let (fd, peer) = narrow_pair(&mut engine);
    let part = Part::new(pattern(8 << 20), 0);
    engine.send_shared(&fd, &[b"head"], &part, token(1));
    engine.close(fd);
    assert_eq!(Rc::strong_count(&part.bytes), 1, "the engine holds no reference");
    drop(peer);
    assert_eq!(engine.descriptors(), 0);
}

#[test]
fn a_peer_that_closed_is_an_error() {
    let mut engine = engine();
    let (fd, peer) = narrow_pair(&mut engine);
    let part = Part::new(pattern(8 << 20), 0);
    engine.send_shared(&fd, &[], &part, token(1));
    drop(peer);
    assert!(sent(&mut engine).1.is_err());
    engine.close(fd);
}

#[test]
fn a_file_that_is_shorter_than_its_bytes_is_an_error() {
    let mut engine = engine();
    let (fd, _peer) = pair(&mut engine);
    let mut part = Part::new(pattern(1000), 0);
    part.bytes = Rc::new(pattern(2000));
    engine.send_shared(&fd, &[], &part, token(1));
    assert!(sent(&mut engine).1.is_err());
    engine.close(fd);
}
