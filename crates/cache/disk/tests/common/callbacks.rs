//! The callbacks of disks in tests, and helpers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use iolite::{Aggregate, AllocError, MemoryKind, PrefaultOutcome, Slab};
use millrace_body::{Body, BodyEnd, BodyRead, Filler, Reader, WaiterId};
use millrace_disk::{
    Cursor, DiskCallbacks, DiskHit, DiskReply, Disks, FetchError, FetchRequest, PurgeTarget,
    ResponseId, StoredHeader, StoredResponse,
};
use millrace_http_cache::{Key, META_BYTES, TagHash};

/// Callbacks that record the replies.
#[derive(Debug)]
pub(crate) struct RecordingCallbacks {
    slab: Slab,
    replies: Mutex<HashMap<u64, Vec<DiskReply>>>,
}

impl RecordingCallbacks {
    pub(crate) fn new(slab: &Slab) -> Arc<Self> {
        Arc::new(Self { slab: slab.clone(), replies: Mutex::default() })
    }

    pub(crate) fn take(&self, requester: u64) -> Vec<DiskReply> {
        self.replies.lock().unwrap().remove(&requester).unwrap_or_default()
    }
}

impl DiskCallbacks for RecordingCallbacks {
    fn wake(&self, _waiter: WaiterId) {}

    fn make_room(&self, _refusal: AllocError) -> bool {
        // A prefault thread may be running, and other threads may release memory.
        let _: PrefaultOutcome = self.slab.prefault();
        true
    }

    fn handle_reply(&self, requester: WaiterId, reply: DiskReply) {
        self.replies.lock().unwrap().entry(requester.token).or_default().push(reply);
    }
}

pub(crate) fn waiter(token: u64) -> WaiterId {
    WaiterId { worker: 0, token }
}

/// Returns the body of a version of a response. Each version has a different one.
pub(crate) fn body_of(id: ResponseId, version: u64, length: usize) -> Vec<u8> {
    let mut state = (id.key.0 as u64) ^ (id.variant as u64).rotate_left(32) ^ (version << 20);
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        bytes.extend_from_slice(&(state ^ (state >> 29)).to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Copies bytes into memory of the slab, in several parts.
pub(crate) fn aggregate(slab: &Slab, bytes: &[u8]) -> Aggregate {
    let mut all = Aggregate::new();
    for part in bytes.chunks(MemoryKind::Copied.bytes_max()) {
        loop {
            match slab.allocate(MemoryKind::Copied, part.len()..=part.len(), 0) {
                Ok(mut buffer) => {
                    buffer.write(part);
                    break all.append(buffer.freeze());
                }
                Err(error) => {
                    let outcome = slab.prefault();
                    assert!(
                        error == AllocError::NotReady || outcome != PrefaultOutcome::Idle,
                        "{error}"
                    );
                }
            }
        }
    }
    all
}

/// Returns a response whose header has its version.
pub(crate) fn response(
    slab: &Slab,
    id: ResponseId,
    version: u64,
    length: usize,
) -> Box<StoredResponse> {
    let group = group_of(id.key);
    Box::new(StoredResponse {
        id,
        variant: None,
        vary: None,
        meta: [version as u8; META_BYTES],
        header: format!("v{version} l{length} u0").into_bytes().into(),
        name: name_of(id.key).into(),
        tags: [TagHash(u128::from(group) + 1)].into(),
        body: aggregate(slab, &body_of(id, version, length)),
    })
}

/// Returns the group of a key. There are four, each with its own prefix and tag.
pub(crate) fn group_of(key: Key) -> u8 {
    (key.0 % 4) as u8
}

pub(crate) fn name_of(key: Key) -> Vec<u8> {
    format!("http://g{}/{:x}", group_of(key), key.0).into_bytes()
}

/// Returns version, length and update count of a header.
pub(crate) fn read_head(head: &StoredHeader) -> (u64, usize, u64) {
    let text = std::str::from_utf8(&head.header).unwrap();
    let number = |part: &str| part[1..].parse::<u64>().unwrap();
    let numbers: Vec<u64> = text.split(' ').map(number).collect();
    (numbers[0], numbers[1] as usize, numbers[2])
}

/// A fetch in progress.
pub(crate) struct Fetched {
    pub(crate) id: ResponseId,
    token: u64,
    body: Arc<Body>,
    reader: Reader,
}

/// Starts to fetch a response; `None` if the disk is overloaded.
pub(crate) fn fetch(disks: &Disks, slab: &Slab, hit: DiskHit, token: u64) -> Option<Fetched> {
    let bytes = hit.body_bytes;
    let kind = if bytes < 8192 { MemoryKind::Copied } else { MemoryKind::ZeroCopy };
    let filler = Filler::new(slab, kind, Some(bytes), 0);
    let body = filler.body().clone();
    let reader = Reader::new(body.clone(), 0).unwrap();
    let (id, requester) = (hit.id, waiter(token));
    disks.fetch(Box::new(FetchRequest { hit, filler, requester })).ok()?;
    Some(Fetched { id, token, body, reader })
}

impl Fetched {
    /// Returns whether the fetch has ended.
    pub(crate) fn is_over(&self, callbacks: &RecordingCallbacks) -> bool {
        self.body.end().is_some() && callbacks.replies.lock().unwrap().contains_key(&self.token)
    }

    /// Checks the result of a fetch that has ended. Returns the header and whether the body is
    /// whole. Panics at any wrong byte.
    pub(crate) fn check(
        mut self,
        callbacks: &RecordingCallbacks,
    ) -> Result<(StoredHeader, bool), FetchError> {
        let mut all = Vec::new();
        let end = loop {
            match self.reader.read(usize::MAX >> 1, waiter(0)).0 {
                BodyRead::Bytes(slice) => all.extend_from_slice(&slice),
                BodyRead::Wait => panic!("{:?} is in progress", self.id),
                BodyRead::End(end) => break end,
            }
        };
        let mut replies = callbacks.take(self.token);
        replies.retain(|reply| *reply != DiskReply::Cut(self.id));
        assert_eq!(replies.len(), 1, "a request has one reply");
        match replies.into_iter().next().unwrap() {
            DiskReply::Fetched(head) => {
                let (version, length, _) = read_head(&head);
                let whole = body_of(self.id, version, length);
                let is_whole = end == BodyEnd::Whole;
                let name = name_of(self.id.key);
                assert_eq!(
                    (head.id, &*head.name, head.body_bytes),
                    (self.id, &*name, length as u64)
                );
                assert_eq!(head.meta[0], version as u8);
                assert!(whole.starts_with(&all), "wrong bytes of {:?}", self.id);
                assert!(!is_whole || all.len() == length);
                assert_eq!(self.body.end(), Some(end));
                Ok((*head, is_whole))
            }
            DiskReply::NotFetched(error) => {
                assert!(all.is_empty(), "nothing is delivered before the reply");
                assert_eq!(end, BodyEnd::Cut);
                Err(error)
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Makes everything stored so far survive a failure of the machine, with a purge of a key that has
/// no responses. `requester` gets [`DiskReply::Purged`].
pub(crate) fn sync(disks: &Disks, requester: u64) {
    disks.purge(&PurgeTarget::Key(Key(u128::MAX)), false, waiter(requester));
}

/// Returns everything in a listing.
pub(crate) fn list(
    disks: &Disks,
    callbacks: &RecordingCallbacks,
    mut work: impl FnMut(),
) -> Vec<StoredHeader> {
    let mut all = Vec::new();
    let mut cursor = Some(Cursor::default());
    while let Some(at) = cursor {
        disks.list(at, waiter(u64::MAX));
        work();
        match callbacks.take(u64::MAX).pop() {
            Some(DiskReply::Listed(headers, next)) => {
                all.extend(headers);
                cursor = next;
            }
            other => panic!("{other:?}"),
        }
    }
    all
}
