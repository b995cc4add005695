//! bpf(2), for what the loader does not do: maps of regions, made, frozen and known by a number,
//! and programs that go through all there is of something.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

type Result<T> = std::result::Result<T, Errno>;

// Commands and kinds of linux/bpf.h.
const MAP_CREATE: i32 = 0;
const MAP_LOOKUP: i32 = 1;
const MAP_UPDATE: i32 = 2;
const MAP_DELETE: i32 = 3;
const INFO: i32 = 15;
const MAP_FREEZE: i32 = 22;
const LINK_CREATE: i32 = 28;
const ITER_CREATE: i32 = 33;
const ITER: u32 = 28;
const ARRAY: u32 = 2;
const RING: u32 = 27;
const MMAPABLE: u32 = 1 << 10;
/// Only in place of a value that is there.
const EXIST: u64 = 2;

/// The beginnings of `union bpf_attr`; the kernel takes what follows as zeros.
#[repr(C)]
struct Create {
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries: u32,
    flags: u32,
}

#[repr(C)]
struct Element {
    map: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
struct Freeze {
    map: u32,
}

#[repr(C)]
struct Ask {
    of: u32,
    bytes: u32,
    place: u64,
}

/// The beginning of `struct bpf_map_info`.
#[repr(C)]
#[derive(Default)]
struct Info {
    kind: u32,
    id: u32,
}

#[repr(C)]
struct Link {
    program: u32,
    target: u32,
    kind: u32,
    flags: u32,
    /// Of a descriptor, the map's; null for none.
    map: u64,
    map_bytes: u32,
    padding: u32,
}

#[repr(C)]
struct Iterate {
    link: u32,
    flags: u32,
}

/// What may be handed to the kernel as `union bpf_attr`.
///
/// # Safety
/// It is the beginning of the union as the command has it, and has no padding of the compiler's.
unsafe trait Attributes {}
// SAFETY: five words, as MAP_CREATE has them.
unsafe impl Attributes for Create {}
// SAFETY: two words and three double words, as MAP_LOOKUP_ELEM and MAP_UPDATE_ELEM have them.
unsafe impl Attributes for Element {}
// SAFETY: a word, as MAP_FREEZE has it.
unsafe impl Attributes for Freeze {}
// SAFETY: two words and a double word, as OBJ_GET_INFO_BY_FD has them.
unsafe impl Attributes for Ask {}
// SAFETY: four words, a double word and two words, as LINK_CREATE has them.
unsafe impl Attributes for Link {}
// SAFETY: two words, as ITER_CREATE has them.
unsafe impl Attributes for Iterate {}

/// # Safety
/// Addresses among the attributes are of memory that the command may read, of the length that the
/// map says, or may write, of the length that is said.
unsafe fn bpf<T: Attributes>(command: i32, attributes: &T) -> Result<i32> {
    // SAFETY: the attributes are the command's, and outlive the call; of what they point to the
    // caller promises the same.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attributes), size_of::<T>())
    };
    if result < 0 {
        let error = std::io::Error::last_os_error();
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO));
    }
    Ok(result as i32)
}

/// # Safety
/// As [`bpf`]; the command gives a new descriptor.
unsafe fn open<T: Attributes>(command: i32, attributes: &T) -> Result<OwnedFd> {
    // SAFETY: by this function's contract.
    let fd = unsafe { bpf(command, attributes) }?;
    // SAFETY: the kernel has just given it to us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn create(attributes: &Create) -> Result<OwnedFd> {
    // SAFETY: there is no address among them.
    unsafe { open(MAP_CREATE, attributes) }
}

/// An array of one value that can be mapped (since Linux 5.5). All of its memory is taken at once.
pub(crate) fn create_shared(value_bytes: usize) -> Result<OwnedFd> {
    let value_bytes = u32::try_from(value_bytes).map_err(|_| Errno::INVAL)?;
    create(&Create { kind: ARRAY, key_bytes: 4, value_bytes, entries: 1, flags: MMAPABLE })
}

/// A ring of records (since Linux 5.8).
pub(crate) fn create_ring(bytes: u32) -> Result<OwnedFd> {
    create(&Create { kind: RING, key_bytes: 0, value_bytes: 0, entries: bytes, flags: 0 })
}

/// A map whose keys are numbers, and the bytes of its values.
#[derive(Clone, Copy)]
pub(crate) struct Numbered<'a> {
    map: BorrowedFd<'a>,
    value_bytes: usize,
}

impl<'a> Numbered<'a> {
    /// `value_bytes` is what the map was made with; the kernel reads as many.
    pub(crate) fn new(map: BorrowedFd<'a>, value_bytes: usize) -> Self {
        Self { map, value_bytes }
    }

    /// Stores a value under a key.
    ///
    /// # Panics
    /// When it has another length than the map's values.
    pub(crate) fn set(self, key: u32, value: &[u8]) -> Result<()> {
        self.update(key, value, 0)
    }

    /// Stores a value in place of the one that is there; false if there is none.
    ///
    /// # Panics
    /// As [`Numbered::set`].
    pub(crate) fn replace(self, key: u32, value: &[u8]) -> Result<bool> {
        match self.update(key, value, EXIST) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn update(self, key: u32, value: &[u8], flags: u64) -> Result<()> {
        assert_eq!(value.len(), self.value_bytes, "the kernel reads as many bytes as a value has");
        let element = self.element(&key, value.as_ptr().expose_provenance() as u64);
        let element = Element { flags, ..element };
        // SAFETY: `key` and `value` outlive the call, and are as long as the map's.
        unsafe { bpf(MAP_UPDATE, &element) }.map(drop)
    }

    /// Copies a value out; false if there is none.
    ///
    /// # Panics
    /// When `value` has another length than the map's values.
    pub(crate) fn get(self, key: u32, value: &mut [u8]) -> Result<bool> {
        assert_eq!(value.len(), self.value_bytes, "the kernel writes as many bytes as a value has");
        let element = self.element(&key, value.as_mut_ptr().expose_provenance() as u64);
        // SAFETY: `key` and `value` outlive the call and are as long as the map's, and nothing else
        // refers to `value`, which the kernel writes.
        match unsafe { bpf(MAP_LOOKUP, &element) } {
            Ok(_) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Takes a key out; there need be none.
    pub(crate) fn remove(self, key: u32) -> Result<()> {
        let element = self.element(&key, 0);
        // SAFETY: `key` outlives the call and is as long as the map's; no value is read.
        match unsafe { bpf(MAP_DELETE, &element) } {
            Ok(_) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn element(self, key: &u32, value: u64) -> Element {
        let map = self.map.as_raw_fd().unsigned_abs();
        let key = std::ptr::from_ref(key).expose_provenance() as u64;
        Element { map, padding: 0, key, value, flags: 0 }
    }
}

/// From now on nobody maps it for writing or changes it by a call (since Linux 5.2); programs still
/// do.
pub(crate) fn freeze(map: impl AsFd) -> Result<()> {
    let attributes = Freeze { map: map.as_fd().as_raw_fd().unsigned_abs() };
    // SAFETY: there is no address among them.
    unsafe { bpf(MAP_FREEZE, &attributes) }.map(drop)
}

/// The number of a map, which no other one has while it is there.
pub(crate) fn id(map: impl AsFd) -> Result<u32> {
    let mut info = Info::default();
    let attributes = Ask {
        of: map.as_fd().as_raw_fd().unsigned_abs(),
        bytes: size_of_val(&info) as u32,
        place: (&raw mut info).expose_provenance() as u64,
    };
    // SAFETY: `info` outlives the call, may be written, and has so many bytes.
    unsafe { bpf(INFO, &attributes) }?;
    Ok(info.id)
}

/// Has a program called for each element of a kind, and gives what that writes. It goes on only as
/// it is read.
pub(crate) struct Iteration(OwnedFd);

impl Iteration {
    /// Of a program's own kind (since Linux 5.8), or of each socket that has storage in a map (since
    /// 5.9).
    pub(crate) fn new(program: BorrowedFd<'_>, map: Option<BorrowedFd<'_>>) -> Result<Self> {
        let map = map.map(|map| map.as_raw_fd().unsigned_abs());
        let place = map.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let attributes = Link {
            program: program.as_raw_fd().unsigned_abs(),
            target: 0,
            kind: ITER,
            flags: 0,
            map: place.expose_provenance() as u64,
            map_bytes: map.as_ref().map_or(0, size_of_val) as u32,
            padding: 0,
        };
        // SAFETY: `map` outlives the call and has so many bytes; the command gives a descriptor.
        let link = unsafe { open(LINK_CREATE, &attributes) }?;
        let attributes = Iterate { link: link.as_raw_fd().unsigned_abs(), flags: 0 };
        // SAFETY: there is no address among them; the command gives a descriptor.
        unsafe { open(ITER_CREATE, &attributes) }.map(Self)
    }

    /// Goes on until that many bytes are written; gives how many there are, fewer at the end.
    pub(crate) fn read(&self, bytes: &mut [u8]) -> Result<usize> {
        let mut count = 0;
        while count < bytes.len() {
            match rustix::io::read(&self.0, &mut bytes[count..]) {
                Ok(0) => break,
                Ok(more) => count += more,
                // So many were looked at without a byte; it goes on from there.
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(count)
    }
}
