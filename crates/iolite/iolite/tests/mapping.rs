//! Aggregates as contiguous memory.

use std::io::{Read, Write};

use iolite::{Aggregate, Slab, UnsealedMemory};
use millrace_sys::{PrivateMemory, page_bytes};

const MEGABYTE: usize = 1 << 20;

fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|at| (at.wrapping_mul(31) >> 3) as u8 ^ seed).collect()
}

fn sealed(bytes: &[u8]) -> Aggregate {
    let mut memory = UnsealedMemory::new(bytes.len()).expect("memory");
    memory.write(bytes);
    memory.seal().expect("no mapping").into_slice().expect("a mapping").into()
}

/// Returns the bytes of memory that were copied: those that belong to no file (proc(5), smaps).
fn copied_bytes(memory: &mut PrivateMemory) -> usize {
    let range = memory.bytes_mut().as_ptr_range();
    let text = std::fs::read_to_string("/proc/self/smaps").expect("proc(5)");
    let mut is_inside = false;
    let mut kilobytes = 0;
    for line in text.lines() {
        let first = line.split(' ').next().expect("a word");
        if let Some((begin, end)) = first.split_once('-') {
            let address = |text| usize::from_str_radix(text, 16).expect("an address");
            is_inside = address(begin) < range.end as usize && address(end) > range.start as usize;
        } else if is_inside && first == "Anonymous:" {
            let number = line.split_whitespace().nth(1).expect("a number");
            kilobytes += number.parse::<usize>().expect("a number");
        }
    }
    kilobytes * 1024
}

#[test]
fn pages_of_sealed_memory_are_not_copied() {
    let bytes = pattern(3 * MEGABYTE, 1);
    let mut memory = sealed(&bytes).map().expect("memory");
    assert!(memory.bytes_mut() == bytes);
    assert_eq!(copied_bytes(&mut memory), 0);
    memory.bytes_mut()[MEGABYTE] ^= 1;
    assert_eq!(copied_bytes(&mut memory), page_bytes());
}

#[test]
fn all_bytes_follow_each_other() {
    let slab = Slab::on_heap(4 * MEGABYTE).expect("memory");
    let page = page_bytes();
    let parts = [(5 * page, true), (100, false), (2 * page + 7, true), (3 * page, false)];
    let (mut all, mut expected) = (Aggregate::new(), Vec::new());
    for (seed, (length, is_sealed)) in parts.into_iter().enumerate() {
        let bytes = pattern(length, seed as u8);
        let part = || Aggregate::from_bytes(&bytes, &slab).expect("room");
        all.concatenate(if is_sealed { sealed(&bytes) } else { part() });
        expected.extend(bytes);
    }
    for (begin, end) in [(0, all.len()), (page as u64, all.len()), (1, 5 * page as u64), (0, 1)] {
        let mut memory = all.slice(begin..end).map().expect("memory");
        assert!(memory.bytes_mut() == &expected[begin as usize..end as usize], "{begin} {end}");
    }
    // Writing there changes no slice.
    let mut memory = all.map().expect("memory");
    memory.bytes_mut().fill(7);
    assert!(all.to_vec() == expected);
    assert!(Aggregate::new().map().is_err());
}

#[test]
fn system_calls_use_the_memory() {
    let bytes = pattern(40_000, 3);
    let mut memory = sealed(&bytes).map().expect("memory");
    let (mut from, mut to) = std::io::pipe().expect("a pipe");
    to.write_all(memory.bytes_mut()).expect("room");
    let mut read = vec![0; bytes.len()];
    from.read_exact(&mut read).expect("bytes");
    assert!(read == bytes);
    to.write_all(&[9; 10_000]).expect("room");
    from.read_exact(&mut memory.bytes_mut()[5000..15_000]).expect("bytes");
    assert!(memory.bytes_mut()[5000..15_000].iter().all(|byte| *byte == 9));
    assert!(memory.bytes_mut()[15_000..] == bytes[15_000..]);
}
