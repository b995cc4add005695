//! bpf(2), for what the loader does not do: maps of regions, made, frozen and known by a number,
//! and programs that go through all there is of something.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

type Result<T> = std::result::Result<T, Errno>;

// Commands and kinds of linux/bpf.h.
const BPF_MAP_CREATE: i32 = 0;
const BPF_MAP_LOOKUP_ELEM: i32 = 1;
const BPF_MAP_UPDATE_ELEM: i32 = 2;
const BPF_MAP_DELETE_ELEM: i32 = 3;
const BPF_OBJ_GET_INFO_BY_FD: i32 = 15;
const BPF_MAP_FREEZE: i32 = 22;
const BPF_LINK_CREATE: i32 = 28;
const BPF_ITER_CREATE: i32 = 33;
const BPF_TRACE_ITER: u32 = 28;
const BPF_MAP_TYPE_ARRAY: u32 = 2;
const BPF_MAP_TYPE_RINGBUF: u32 = 27;
const BPF_F_MMAPABLE: u32 = 1 << 10;
/// Only in place of a value that is there.
const BPF_EXIST: u64 = 2;

/// The beginnings of `union bpf_attr`; the kernel takes what follows as zeros.
#[repr(C)]
struct MapCreateAttr {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
}

#[repr(C)]
struct MapElemAttr {
    map_fd: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
struct MapFreezeAttr {
    map_fd: u32,
}

#[repr(C)]
struct ObjInfoAttr {
    bpf_fd: u32,
    info_len: u32,
    info: u64,
}

/// The beginning of `struct bpf_map_info`.
#[repr(C)]
#[derive(Default)]
struct MapInfo {
    map_type: u32,
    id: u32,
}

#[repr(C)]
struct LinkCreateAttr {
    prog_fd: u32,
    target_fd: u32,
    attach_type: u32,
    flags: u32,
    /// Of a descriptor, the map's; null for none.
    iter_info: u64,
    iter_info_len: u32,
    padding: u32,
}

#[repr(C)]
struct IterCreateAttr {
    link_fd: u32,
    flags: u32,
}

/// What may be handed to the kernel as `union bpf_attr`.
///
/// # Safety
/// It is the beginning of the union as the command has it, and has no padding of the compiler's.
unsafe trait BpfAttr {}
// SAFETY: five words, as MAP_CREATE has them.
unsafe impl BpfAttr for MapCreateAttr {}
// SAFETY: two words and three double words, as MAP_LOOKUP_ELEM and MAP_UPDATE_ELEM have them.
unsafe impl BpfAttr for MapElemAttr {}
// SAFETY: a word, as MAP_FREEZE has it.
unsafe impl BpfAttr for MapFreezeAttr {}
// SAFETY: two words and a double word, as OBJ_GET_INFO_BY_FD has them.
unsafe impl BpfAttr for ObjInfoAttr {}
// SAFETY: four words, a double word and two words, as LINK_CREATE has them.
unsafe impl BpfAttr for LinkCreateAttr {}
// SAFETY: two words, as ITER_CREATE has them.
unsafe impl BpfAttr for IterCreateAttr {}

/// # Safety
/// Addresses among the attributes are of memory that the command may read, of the length that the
/// map says, or may write, of the length that is said.
unsafe fn bpf<T: BpfAttr>(command: i32, attributes: &T) -> Result<i32> {
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
unsafe fn bpf_new_fd<T: BpfAttr>(command: i32, attributes: &T) -> Result<OwnedFd> {
    // SAFETY: by this function's contract.
    let fd = unsafe { bpf(command, attributes) }?;
    // SAFETY: the kernel has just given it to us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn create_map(attributes: &MapCreateAttr) -> Result<OwnedFd> {
    // SAFETY: there is no address among them.
    unsafe { bpf_new_fd(BPF_MAP_CREATE, attributes) }
}

/// An array of one value that can be mapped (since Linux 5.5). All of its memory is taken at once.
pub(crate) fn create_mmapable_array(value_bytes: usize) -> Result<OwnedFd> {
    let value_bytes = u32::try_from(value_bytes).map_err(|_| Errno::INVAL)?;
    create_map(&MapCreateAttr {
        map_type: BPF_MAP_TYPE_ARRAY,
        key_size: 4,
        value_size: value_bytes,
        max_entries: 1,
        map_flags: BPF_F_MMAPABLE,
    })
}

/// A ring of records (since Linux 5.8).
pub(crate) fn create_ringbuf(bytes: u32) -> Result<OwnedFd> {
    create_map(&MapCreateAttr {
        map_type: BPF_MAP_TYPE_RINGBUF,
        key_size: 0,
        value_size: 0,
        max_entries: bytes,
        map_flags: 0,
    })
}

/// A map whose keys are numbers, and the bytes of its values.
#[derive(Clone, Copy)]
pub(crate) struct U32Map<'a> {
    map: BorrowedFd<'a>,
    value_bytes: usize,
}

impl<'a> U32Map<'a> {
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
        match self.update(key, value, BPF_EXIST) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn update(self, key: u32, value: &[u8], flags: u64) -> Result<()> {
        assert_eq!(value.len(), self.value_bytes, "the kernel reads as many bytes as a value has");
        let element = self.element(&key, value.as_ptr().expose_provenance() as u64);
        let element = MapElemAttr { flags, ..element };
        // SAFETY: `key` and `value` outlive the call, and are as long as the map's.
        unsafe { bpf(BPF_MAP_UPDATE_ELEM, &element) }.map(drop)
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
        match unsafe { bpf(BPF_MAP_LOOKUP_ELEM, &element) } {
            Ok(_) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Takes a key out; there need be none.
    pub(crate) fn remove(self, key: u32) -> Result<()> {
        let element = self.element(&key, 0);
        // SAFETY: `key` outlives the call and is as long as the map's; no value is read.
        match unsafe { bpf(BPF_MAP_DELETE_ELEM, &element) } {
            Ok(_) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn element(self, key: &u32, value: u64) -> MapElemAttr {
        let map = self.map.as_raw_fd().unsigned_abs();
        let key = std::ptr::from_ref(key).expose_provenance() as u64;
        MapElemAttr { map_fd: map, padding: 0, key, value, flags: 0 }
    }
}

/// From now on nobody maps it for writing or changes it by a call (since Linux 5.2); programs still
/// do.
pub(crate) fn freeze_map(map: impl AsFd) -> Result<()> {
    let attributes = MapFreezeAttr { map_fd: map.as_fd().as_raw_fd().unsigned_abs() };
    // SAFETY: there is no address among them.
    unsafe { bpf(BPF_MAP_FREEZE, &attributes) }.map(drop)
}

/// The number of a map, which no other one has while it is there.
pub(crate) fn map_id(map: impl AsFd) -> Result<u32> {
    let mut info = MapInfo::default();
    let attributes = ObjInfoAttr {
        bpf_fd: map.as_fd().as_raw_fd().unsigned_abs(),
        info_len: size_of_val(&info) as u32,
        info: (&raw mut info).expose_provenance() as u64,
    };
    // SAFETY: `info` outlives the call, may be written, and has so many bytes.
    unsafe { bpf(BPF_OBJ_GET_INFO_BY_FD, &attributes) }?;
    Ok(info.id)
}

/// Has a program called for each element of a kind, and gives what that writes. It goes on only as
/// it is read.
pub(crate) struct BpfIter(OwnedFd);

impl BpfIter {
    /// Of a program's own kind (since Linux 5.8), or of each socket that has storage in a map (since
    /// 5.9).
    pub(crate) fn new(program: BorrowedFd<'_>, map: Option<BorrowedFd<'_>>) -> Result<Self> {
        let map = map.map(|map| map.as_raw_fd().unsigned_abs());
        let place = map.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let attributes = LinkCreateAttr {
            prog_fd: program.as_raw_fd().unsigned_abs(),
            target_fd: 0,
            attach_type: BPF_TRACE_ITER,
            flags: 0,
            iter_info: place.expose_provenance() as u64,
            iter_info_len: map.as_ref().map_or(0, size_of_val) as u32,
            padding: 0,
        };
        // SAFETY: `map` outlives the call and has so many bytes; the command gives a descriptor.
        let link = unsafe { bpf_new_fd(BPF_LINK_CREATE, &attributes) }?;
        let attributes = IterCreateAttr { link_fd: link.as_raw_fd().unsigned_abs(), flags: 0 };
        // SAFETY: there is no address among them; the command gives a descriptor.
        unsafe { bpf_new_fd(BPF_ITER_CREATE, &attributes) }.map(Self)
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
