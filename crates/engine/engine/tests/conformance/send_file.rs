//! Parts, and then bytes of a file.

use std::fs::File;
use std::io::Read;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use super::common::*;
use millrace_engine::{CompletionEvent, Engine, Error, FileRead};
use millrace_sys::Errno;

#[derive(Debug)]
struct OpenFile(File);

impl FileRead for OpenFile {
    fn read_at(&self, _at: u64, _bytes: &mut [u8], _waits: bool) -> Result<usize, Errno> {
        unreachable!("a real engine uses the descriptor")
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.as_fd())
    }
}

/// Creates a file that contains `bytes`.
fn open_file(bytes: &[u8]) -> (Arc<OpenFile>, Arc<dyn FileRead>) {
    let file = Arc::new(OpenFile(file_of(bytes)));
    (file.clone(), file)
}

#[test]
fn a_header_and_a_range_of_a_file_arrive_in_order() {
    let mut engine = engine();
    let (fd, mut peer) = pair(&mut engine);
    let bytes = pattern(30_000);
    let (_, file) = open_file(&bytes);
    engine.send_file(&fd, &[b"he", b"ad"], &file, 5_000, 15_000, token(1));
    assert_eq!(engine.unsent_bytes(&fd), 0);
    assert_eq!(sent(&mut engine), (token(1), Ok(())));
    assert_eq!((engine.stats().bytes_sent, engine.stats().bytes_zero_copy), (4, 15_000));
    engine.close(fd);
    let mut read = Vec::new();
    peer.read_to_end(&mut read).unwrap();
    assert!(read == [b"head", &bytes[5_000..20_000]].concat());
}

#[test]
fn a_slow_reader_gets_everything_and_no_byte_of_a_file_is_held() {
    let mut engine = engine();
    let (fd, peer) = narrow_pair(&mut engine);
    let bytes = pattern(8 << 20);
    let (_, file) = open_file(&bytes);
    engine.send_file(&fd, &[], &file, 0, bytes.len(), token(1));
    assert!(engine.unsent_bytes(&fd) > 4 << 20, "the kernel takes only a part");
    assert_eq!(engine.budget().used(), 0, "bytes that are not copied are not charged");
    assert_eq!(Arc::strong_count(&file), 2, "the send holds the file");
    let reading = reading(peer, bytes);
    assert_eq!(sent(&mut engine), (token(1), Ok(())));
    assert_eq!((engine.unsent_bytes(&fd), Arc::strong_count(&file)), (0, 1));
    reading.join().unwrap();
    engine.close(fd);
}

#[test]
fn parts_before_a_file_wait_for_room_too() {
    let mut engine = engine();
    let (fd, peer) = narrow_pair(&mut engine);
    let (before, bytes) = (pattern(4 << 20), pattern(100_001));
    let (_, file) = open_file(&bytes);
    engine.send_file(&fd, &[&before], &file, 1, 100_000, token(1));
    let unsent = engine.unsent_bytes(&fd);
    assert_eq!(engine.budget().used(), unsent - 100_000, "only the parts are copied");
    assert_eq!(engine.stats().bytes_zero_copy, 0, "the file follows the parts");
    let reading = reading(peer, [&before, &bytes[1..]].concat());
    assert_eq!(sent(&mut engine), (token(1), Ok(())));
    reading.join().unwrap();
    engine.close(fd);
    assert_eq!(engine.budget().used(), 0);
}

#[test]
fn closing_ends_a_send_of_a_file() {
    let mut engine = engine();
    let (fd, peer) = narrow_pair(&mut engine);
    let (_, file) = open_file(&pattern(8 << 20));
    engine.send_file(&fd, &[b"head"], &file, 0, 8 << 20, token(1));
    assert_eq!(Arc::strong_count(&file), 2, "the send holds the file");
    engine.close(fd);
    assert_eq!(Arc::strong_count(&file), 1, "the engine holds no reference");
    drop(peer);
    assert_eq!(poll_all(&mut engine).len(), 0, "no completion follows");
    assert_eq!(engine.descriptors(), 0);
}

#[test]
fn a_peer_that_closed_is_no_error_of_the_file() {
    let mut engine = engine();
    let (fd, peer) = narrow_pair(&mut engine);
    let (_, file) = open_file(&pattern(8 << 20));
    engine.send_file(&fd, &[], &file, 0, 8 << 20, token(1));
    drop(peer);
    let error = sent(&mut engine).1.unwrap_err();
    assert!(!error.is_of_file(), "{error}");
    engine.close(fd);
}

#[test]
fn a_file_with_too_few_bytes_is_an_error_after_them() {
    let mut engine = engine();
    let (fd, mut peer) = pair(&mut engine);
    let bytes = pattern(1000);
    let (_, file) = open_file(&bytes);
    engine.send_file(&fd, &[b"head"], &file, 0, 1001, token(1));
    assert_eq!(sent(&mut engine), (token(1), Err(Error::FileEnded)));
    engine.close(fd);
    let mut read = Vec::new();
    peer.read_to_end(&mut read).unwrap();
    assert!(read == [b"head", &bytes[..]].concat(), "nothing is added");
}

#[test]
fn a_file_that_is_truncated_during_its_send_is_an_error() {
    let mut engine = engine();
    let (fd, mut peer) = narrow_pair(&mut engine);
    let (open, file) = open_file(&pattern(8 << 20));
    engine.send_file(&fd, &[], &file, 0, 8 << 20, token(1));
    assert!(engine.unsent_bytes(&fd) > 4 << 20, "the kernel takes only a part");
    open.0.set_len(1000).unwrap();
    let reading = std::thread::spawn(move || peer.read_to_end(&mut Vec::new()));
    assert_eq!(sent(&mut engine), (token(1), Err(Error::FileEnded)));
    assert_eq!((engine.unsent_bytes(&fd), Arc::strong_count(&file)), (0, 2));
    engine.reset(fd);
    engine.submit_and_wait(Some(engine.now()));
    assert!(reading.join().unwrap().is_err(), "the peer reads a reset");
}

#[test]
fn a_file_that_cannot_be_read_is_an_error_of_the_file() {
    let mut engine = engine();
    let (fd, _peer) = pair(&mut engine);
    let folder: Arc<dyn FileRead> = Arc::new(OpenFile(File::open("/").unwrap()));
    engine.send_file(&fd, &[b"head"], &folder, 0, 1, token(1));
    let error = sent(&mut engine).1.unwrap_err();
    assert!(matches!(error, Error::FileUnreadable(_)), "{error}");
    engine.close(fd);
}

#[test]
fn a_failed_file_does_not_break_the_receiving_direction() {
    let mut engine = engine();
    let (fd, peer) = pair(&mut engine);
    peer.shutdown(Shutdown::Write).unwrap();
    engine.recv(&fd, 100, token(1));
    engine.send_file(&fd, &[], &open_file(b"").1, 0, 1, token(2));
    for _ in 0..2 {
        match next(&mut engine).event {
            CompletionEvent::Received(result) => {
                let end = result.unwrap();
                assert!(end.is_empty(), "the end of the stream is not a reset");
                engine.recycle(end);
            }
            CompletionEvent::Sent(result) => assert_eq!(result, Err(Error::FileEnded)),
            other => panic!("{other:?}"),
        }
    }
    engine.close(fd);
}
