//! Bodies during their arrival, from the filler's and the readers' side.

use super::*;

const ME: WaiterId = WaiterId { worker: 0, token: 1 };
const FILLER: WaiterId = WaiterId { worker: 1, token: 2 };

fn slab() -> Slab {
    Slab::on_heap(16 << 20).unwrap()
}

fn fill(filler: &mut Filler, bytes: &[u8]) -> Vec<WaiterId> {
    let mut woken = Vec::new();
    let mut bytes = bytes;
    while !bytes.is_empty() {
        while filler.slab.prefault() != iolite::PrefaultOutcome::Idle {}
        let spare = filler.unfilled().unwrap();
        let count = spare.len().min(bytes.len());
        spare[..count].copy_from_slice(&bytes[..count]);
        bytes = &bytes[count..];
        woken.extend(filler.advance(count));
    }
    woken
}

fn read(reader: &mut Reader) -> Vec<u8> {
    let mut all = Vec::new();
    while let (BodyRead::Bytes(slice), _) = reader.read(1000, ME) {
        all.extend_from_slice(&slice);
    }
    all
}

fn bytes(count: usize) -> Vec<u8> {
    (0..count).map(|at| (at * 31 / 7) as u8).collect()
}

#[test]
fn readers_follow_at_their_own_pace() {
    let slab = slab();
    let all = bytes(1 << 20);
    let mut filler = Filler::new(&slab, MemoryKind::ZeroCopy, None, 0);
    let mut early = Reader::new(filler.body().clone(), 0).unwrap();
    assert!(matches!(early.read(10, ME), (BodyRead::Wait, None)));
    assert_eq!(fill(&mut filler, &all[..300_000]), [ME]);
    assert_eq!(read(&mut early), all[..300_000]);
    let mut late = Reader::new(filler.body().clone(), 100).unwrap();
    assert_eq!(read(&mut late), all[100..300_000]);
    assert_eq!(fill(&mut filler, &all[300_000..]), [ME, ME]);
    let body = filler.body().clone();
    assert!(body.bytes().is_none() && body.end().is_none());
    assert_eq!(filler.finish(), []);
    assert_eq!((body.arrived(), body.end()), (1 << 20, Some(BodyEnd::Whole)));
    assert_eq!(body.bytes().unwrap().to_vec(), all);
    assert_eq!(read(&mut early), all[300_000..]);
    assert_eq!(read(&mut late), all[300_000..]);
    assert!(matches!(late.read(10, ME), (BodyRead::End(BodyEnd::Whole), None)));
    assert_eq!(read(&mut Reader::new(body, 1_000_000).unwrap()), all[1_000_000..]);
}

#[test]
fn a_filler_knows_whether_the_body_has_other_holders() {
    let filler = Filler::new(&slab(), MemoryKind::ZeroCopy, None, 0);
    assert!(!filler.is_shared() && filler.reader_count() == 0);
    let reader = Reader::new(filler.body().clone(), 0).unwrap();
    assert!(filler.is_shared() && filler.reader_count() > 0);
    let body = reader.body().clone();
    assert_eq!(reader.close(), None);
    assert!(filler.is_shared() && filler.reader_count() == 0);
    drop(body);
    assert!(!filler.is_shared());
}

#[test]
fn all_readers_share_one_copy() {
    let slab = slab();
    let mut filler = Filler::new(&slab, MemoryKind::ZeroCopy, Some(100_000), 0);
    fill(&mut filler, &bytes(100_000));
    let mut readers: Vec<_> =
        (0..50).map(|_| Reader::new(filler.body().clone(), 0).unwrap()).collect();
    let slices: Vec<_> = readers.iter_mut().map(|reader| reader.read(99_000, ME)).collect();
    filler.finish();
    assert_eq!(slab.stats().live, 25 * 4096);
    drop((slices, readers));
    assert_eq!(slab.stats().live, 0);
}

#[test]
fn a_cut_body_can_be_read_up_to_the_cut() {
    for drops in [false, true] {
        let slab = slab();
        let mut filler = Filler::new(&slab, MemoryKind::Copied, Some(100), 0);
        let mut reader = Reader::new(filler.body().clone(), 0).unwrap();
        fill(&mut filler, b"half");
        assert_eq!(read(&mut reader), b"half");
        if drops {
            drop(filler);
        } else {
            assert_eq!(filler.cut(), [ME]);
        }
        assert!(matches!(reader.read(1, ME), (BodyRead::End(BodyEnd::Cut), None)));
        assert_eq!(reader.body().end(), Some(BodyEnd::Cut));
        assert!(reader.body().bytes().is_none());
    }
}

#[test]
fn a_pass_through_body_discards_bytes_that_were_read() {
    let slab = slab();
    let mut filler = Filler::new(&slab, MemoryKind::ZeroCopy, None, 0);
    let (mut slow, mut fast) = (
        Reader::new(filler.body().clone(), 0).unwrap(),
        Reader::new(filler.body().clone(), 0).unwrap(),
    );
    filler.pass_through();
    let all = bytes(4 << 20);
    for piece in all.chunks(100_000) {
        fill(&mut filler, piece);
        assert_eq!(read(&mut fast), piece);
    }
    assert!(slab.stats().live >= 4 << 20, "the slow reader has read nothing");
    assert_eq!(read(&mut slow), all);
    assert!(slab.stats().live <= 2 * PART_BYTES as u64);
    assert!(Reader::new(filler.body().clone(), 0).is_none(), "its beginning was discarded");
    filler.finish();
    assert!(matches!(slow.read(1, ME), (BodyRead::End(BodyEnd::Whole), None)));
}

#[test]
fn a_reader_that_keeps_up_gets_a_whole_pass_through_body() {
    let slab = slab();
    let mut filler = Filler::new(&slab, MemoryKind::ZeroCopy, None, 0);
    let mut reader = Reader::new(filler.body().clone(), 0).unwrap();
    filler.pass_through();
    for piece in bytes(3 << 20).chunks(1000) {
        assert!(matches!(reader.read(1, ME), (BodyRead::Wait, None)));
        assert_eq!(fill(&mut filler, piece), [ME]);
        assert_eq!(read(&mut reader), piece);
        assert!(slab.stats().live <= PART_BYTES as u64);
    }
    assert_eq!(filler.cut(), [ME]);
    assert_eq!(slab.stats().live, 0, "the reader has read everything");
    assert!(matches!(reader.read(1, ME), (BodyRead::End(BodyEnd::Cut), None)));
}

#[test]
fn appended_bytes_are_not_copied() {
    let slab = slab();
    let all = bytes(100_000);
    let mut first = Filler::new(&slab, MemoryKind::ZeroCopy, Some(60_000), 0);
    let _ = fill(&mut first, &all[..60_000]);
    let old = first.body().clone();
    let _ = first.finish();
    let old = old.bytes().unwrap().clone();
    for before in [0, 20_000, 40_000] {
        let live = slab.stats().live;
        let mut filler = Filler::new(&slab, MemoryKind::ZeroCopy, Some(100_000), 0);
        let mut reader = Reader::new(filler.body().clone(), 0).unwrap();
        let _ = fill(&mut filler, &all[..before]);
        let _ = filler.append(old.clone());
        let _ = fill(&mut filler, &all[..40_000 - before]);
        let expected = [&all[..before], &all[..60_000], &all[..40_000 - before]].concat();
        assert_eq!(read(&mut reader), expected);
        let body = filler.body().clone();
        let _ = filler.finish();
        assert_eq!(body.bytes().unwrap().to_vec(), expected);
        assert!(slab.stats().live - live < 60_000, "the old bytes exist only once");
    }
}

#[test]
fn slow_readers_are_cut_off() {
    let slab = slab();
    let mut filler = Filler::new(&slab, MemoryKind::ZeroCopy, None, 0);
    let mut slow = Reader::new(filler.body().clone(), 0).unwrap();
    let mut fast = Reader::new(filler.body().clone(), 0).unwrap();
    fill(&mut filler, &bytes(2 << 20));
    assert_eq!(filler.cut_slow_readers(0), 0, "the bytes of a stored body are kept anyway");
    filler.pass_through();
    assert_eq!(read(&mut fast), bytes(2 << 20));
    assert!(slab.stats().live >= 2 << 20);
    assert_eq!((filler.cut_slow_readers(1 << 20), filler.cut_slow_readers(1 << 20)), (1, 0));
    assert!(slab.stats().live <= PART_BYTES as u64);
    assert!(matches!(slow.read(1, ME), (BodyRead::End(BodyEnd::Cut), None)));
    assert_eq!(fill(&mut filler, b"more"), [ME]);
    assert_eq!(read(&mut fast), b"more");
    assert_eq!(filler.lead_or_wait(1, FILLER), Some(0));
    drop(fast);
    assert_eq!(filler.lead_or_wait(1, FILLER), None, "one reader was cut off, the other has ended");
}

#[test]
fn a_reader_that_begins_ahead_lets_the_filler_continue() {
    let slab = slab();
    let mut filler = Filler::new(&slab, MemoryKind::ZeroCopy, None, 0);
    let _slow = Reader::new(filler.body().clone(), 0).unwrap();
    let all = bytes(6000);
    fill(&mut filler, &all[..1000]);
    assert_eq!(filler.lead_or_wait(1000, FILLER), Some(1000));
    let mut later = Reader::new(filler.body().clone(), 5000).unwrap();
    assert!(matches!(later.read(usize::MAX, ME), (BodyRead::Wait, Some(FILLER))));
    assert_eq!(filler.lead_or_wait(1000, FILLER), Some(0), "the filler is behind the reader");
    assert_eq!(fill(&mut filler, &all[1000..]), [ME]);
    let (BodyRead::Bytes(last), None) = later.read(usize::MAX, ME) else {
        panic!("the bytes have arrived")
    };
    assert_eq!(*last, all[5000..]);
}

#[test]
fn a_waiting_filler_is_woken() {
    let slab = slab();
    let mut filler = Filler::new(&slab, MemoryKind::ZeroCopy, None, 0);
    let mut reader = Reader::new(filler.body().clone(), 0).unwrap();
    let other = Reader::new(filler.body().clone(), 0).unwrap();
    fill(&mut filler, &bytes(1000));
    filler.lead_or_wait(500, FILLER);
    filler.pass_through();
    drop(other);
    assert!(matches!(reader.read(10, ME), (BodyRead::Bytes(_), Some(FILLER))));
    filler.lead_or_wait(500, FILLER);
    filler.finish();
    assert_eq!(reader.close(), None, "the filler has ended");
}

#[test]
fn an_ended_body_keeps_only_the_memory_of_its_bytes() {
    let slab = slab();
    let mut filler = Filler::new(&slab, MemoryKind::ZeroCopy, None, 0);
    let body = filler.body().clone();
    fill(&mut filler, b"begun");
    assert_eq!(slab.stats().live, FIRST_PART_BYTES as u64);
    filler.cut();
    assert_eq!(slab.stats().live, 4096);
    let mut filler = Filler::new(&slab, MemoryKind::ZeroCopy, None, 0);
    filler.unfilled().unwrap();
    let nothing = filler.body().clone();
    filler.finish();
    assert_eq!((nothing.arrived(), slab.stats().live), (0, 4096));
    drop(body);
    assert_eq!(slab.stats().live, 0);
}

#[test]
#[should_panic(expected = "a short body is not whole")]
fn a_short_body_is_never_whole() {
    let mut filler = Filler::new(&slab(), MemoryKind::Copied, Some(10), 0);
    fill(&mut filler, b"012345678");
    filler.finish();
}

#[test]
#[should_panic(expected = "more bytes than the unfilled memory")]
fn a_filler_cannot_exceed_the_announced_length() {
    let mut filler = Filler::new(&slab(), MemoryKind::Copied, Some(10), 0);
    while filler.slab.prefault() != iolite::PrefaultOutcome::Idle {}
    filler.unfilled().unwrap();
    filler.advance(11);
}

#[test]
fn a_filler_waits_for_the_fastest_reader() {
    let slab = slab();
    let mut filler = Filler::new(&slab, MemoryKind::ZeroCopy, None, 0);
    let mut fast = Reader::new(filler.body().clone(), 0).unwrap();
    let slow = Reader::new(filler.body().clone(), 0).unwrap();
    fill(&mut filler, &bytes(1000));
    assert_eq!(filler.lead_or_wait(2000, FILLER), Some(1000));
    assert!(matches!(fast.read(10, ME), (BodyRead::Bytes(_), None)), "no waiter");
    assert_eq!(filler.lead_or_wait(500, FILLER), Some(990));
    assert!(matches!(fast.read(10, ME), (BodyRead::Bytes(_), Some(FILLER))));
    filler.lead_or_wait(500, FILLER);
    assert_eq!(slow.close(), Some(FILLER));
    drop(fast);
    assert_eq!(filler.lead_or_wait(500, FILLER), None, "no reader is left");
}

#[test]
fn unfilled_memory_is_limited_to_the_announced_length() {
    let slab = slab();
    let mut filler = Filler::new(&slab, MemoryKind::Copied, Some(10), 0);
    assert_eq!(filler.unfilled().unwrap().len(), 10);
    fill(&mut filler, b"0123456789");
    let body = filler.body().clone();
    filler.finish();
    assert_eq!((body.bytes().unwrap().to_vec(), slab.stats().live), (b"0123456789".to_vec(), 256));
}

#[test]
fn a_full_slab_is_reported_and_nothing_is_lost() {
    let slab = Slab::on_heap(iolite::limits::SLAB_BYTES_MIN).unwrap();
    let mut filler = Filler::new(&slab, MemoryKind::ZeroCopy, None, 0);
    let mut count = 0;
    while filler.unfilled().is_ok() {
        let length = filler.unfilled().unwrap().len();
        filler.advance(length);
        count += length as u64;
    }
    assert!(filler.unfilled().is_err());
    let body = filler.body().clone();
    filler.finish();
    assert_eq!((body.arrived(), body.bytes().map(Aggregate::len)), (count, Some(count)));
}

#[test]
fn readers_and_filler_run_on_different_threads() {
    let slab = slab();
    let all = bytes(1 << 20);
    let mut filler = Filler::new(&slab, MemoryKind::ZeroCopy, Some(1 << 20), 0);
    std::thread::scope(|scope| {
        for at in [0, 1, 300_000] {
            let mut reader = Reader::new(filler.body().clone(), at).unwrap();
            let all = &all;
            scope.spawn(move || {
                let mut at = at as usize;
                loop {
                    match reader.read(5000, ME).0 {
                        BodyRead::Bytes(slice) => {
                            assert_eq!(&*slice, &all[at..at + slice.len()]);
                            at += slice.len();
                        }
                        BodyRead::Wait => std::thread::yield_now(),
                        BodyRead::End(end) => {
                            break assert_eq!((end, at), (BodyEnd::Whole, all.len()));
                        }
                    }
                }
            });
        }
        for piece in all.chunks(777) {
            fill(&mut filler, piece);
        }
        filler.finish();
    });
}

/// The body may become whole after a new reader has checked for that and before it takes the lock.
#[test]
fn a_reader_that_begins_while_a_body_ends_finds_its_beginning() {
    let slab = slab();
    let fillers: Vec<Filler> = (0..5_000)
        .map(|_| {
            let mut filler = Filler::new(&slab, MemoryKind::Copied, Some(1), 0);
            fill(&mut filler, b"a");
            filler
        })
        .collect();
    let bodies: Vec<_> = fillers.iter().map(|filler| filler.body().clone()).collect();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for filler in fillers {
                filler.finish();
            }
        });
        for body in bodies {
            while body.bytes().is_none() {
                assert!(Reader::new(body.clone(), 0).is_some(), "nothing was discarded");
            }
        }
    });
}
