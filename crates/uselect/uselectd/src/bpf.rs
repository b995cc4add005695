//! bpf(2) for what the loader does not do: creates, freezes and identifies the maps of regions, and
//! runs iterator programs.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

type Result<T> = std::result::Result<T, Errno>;

// linux/bpf.h: commands, attach types, map types and flags.
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
/// Update only an entry that exists.
const BPF_EXIST: u64 = 2;

// Each `…Attr` is a prefix of `union bpf_attr`, with the field names of linux/bpf.h. The kernel
// takes the bytes that follow as zero.

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

/// The first fields of `struct bpf_map_info`.
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
    /// Address of a `union bpf_iter_link_info`, here the descriptor of a map; 0 for none.
    iter_info: u64,
    iter_info_len: u32,
    padding: u32,
}

#[repr(C)]
struct IterCreateAttr {
    link_fd: u32,
    flags: u32,
}

/// A value that may be passed to the kernel as `union bpf_attr`.
///
/// # Safety
/// The type must have the layout that the command expects at the start of the union, without
/// padding that the compiler inserts.
unsafe trait BpfAttr {}
// SAFETY: five words, the layout of BPF_MAP_CREATE.
unsafe impl BpfAttr for MapCreateAttr {}
// SAFETY: two words and three double words, the layout of BPF_MAP_LOOKUP_ELEM, BPF_MAP_UPDATE_ELEM
// and BPF_MAP_DELETE_ELEM.
unsafe impl BpfAttr for MapElemAttr {}
// SAFETY: one word, the layout of BPF_MAP_FREEZE.
unsafe impl BpfAttr for MapFreezeAttr {}
// SAFETY: two words and a double word, the layout of BPF_OBJ_GET_INFO_BY_FD.
unsafe impl BpfAttr for ObjInfoAttr {}
// SAFETY: four words, a double word and two words, the layout of BPF_LINK_CREATE.
unsafe impl BpfAttr for LinkCreateAttr {}
// SAFETY: two words, the layout of BPF_ITER_CREATE.
unsafe impl BpfAttr for IterCreateAttr {}

/// Calls bpf(2).
///
/// # Safety
/// Each address in `attr` must point to memory that outlives the call and that the command may read
/// or write in the length that the map or `attr` states.
unsafe fn bpf<T: BpfAttr>(command: i32, attr: &T) -> Result<i32> {
    // SAFETY: `attr` has the layout of the command (`BpfAttr`) and outlives the call; the caller
    // guarantees what its addresses point to.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attr), size_of::<T>()) };
    if result < 0 {
        let error = std::io::Error::last_os_error();
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO));
    }
    Ok(result as i32)
}

/// Calls bpf(2) with a command that returns a new descriptor.
///
/// # Safety
/// The conditions of [`bpf`]; the command must return a new descriptor.
unsafe fn bpf_new_fd<T: BpfAttr>(command: i32, attr: &T) -> Result<OwnedFd> {
    // SAFETY: the caller upholds the conditions of `bpf`.
    let fd = unsafe { bpf(command, attr) }?;
    // SAFETY: the kernel has just returned this descriptor, and this function alone owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn create_map(attr: &MapCreateAttr) -> Result<OwnedFd> {
    // SAFETY: `attr` has no addresses, and BPF_MAP_CREATE returns a new descriptor.
    unsafe { bpf_new_fd(BPF_MAP_CREATE, attr) }
}

/// Creates an array with one value that processes can map (since Linux 5.5). The kernel allocates
/// all of its memory at once.
pub(crate) fn create_mmapable_array(value_size: usize) -> Result<OwnedFd> {
    create_map(&MapCreateAttr {
        map_type: BPF_MAP_TYPE_ARRAY,
        key_size: 4,
        value_size: u32::try_from(value_size).map_err(|_| Errno::INVAL)?,
        max_entries: 1,
        map_flags: BPF_F_MMAPABLE,
    })
}

/// Creates a ring buffer of `bytes` bytes (since Linux 5.8).
pub(crate) fn create_ringbuf(bytes: u32) -> Result<OwnedFd> {
    create_map(&MapCreateAttr {
        map_type: BPF_MAP_TYPE_RINGBUF,
        key_size: 0,
        value_size: 0,
        max_entries: bytes,
        map_flags: 0,
    })
}

/// A map whose keys are `u32`.
#[derive(Clone, Copy)]
pub(crate) struct U32Map<'a> {
    map: BorrowedFd<'a>,
    value_size: usize,
}

impl<'a> U32Map<'a> {
    /// `value_size` must be the size in bytes with which the map was created, because the kernel
    /// reads and writes that many bytes.
    pub(crate) fn new(map: BorrowedFd<'a>, value_size: usize) -> Self {
        Self { map, value_size }
    }

    /// Stores a value.
    ///
    /// # Panics
    /// If `value` has another size than the values of the map.
    pub(crate) fn set(self, key: u32, value: &[u8]) -> Result<()> {
        self.update(key, value, 0)
    }

    /// Replaces the value of a key. Returns false if the key has none.
    ///
    /// # Panics
    /// If `value` has another size than the values of the map.
    pub(crate) fn replace(self, key: u32, value: &[u8]) -> Result<bool> {
        match self.update(key, value, BPF_EXIST) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn update(self, key: u32, value: &[u8], flags: u64) -> Result<()> {
        assert_eq!(value.len(), self.value_size, "the kernel reads a value of the map's size");
        let attr = self.elem_attr(&key, value.as_ptr().expose_provenance() as u64);
        let attr = MapElemAttr { flags, ..attr };
        // SAFETY: `key` and `value` outlive the call and have the sizes of the map.
        unsafe { bpf(BPF_MAP_UPDATE_ELEM, &attr) }.map(drop)
    }

    /// Copies the value of a key to `value`. Returns false if the key has none.
    ///
    /// # Panics
    /// If `value` has another size than the values of the map.
    pub(crate) fn get(self, key: u32, value: &mut [u8]) -> Result<bool> {
        assert_eq!(value.len(), self.value_size, "the kernel writes a value of the map's size");
        let attr = self.elem_attr(&key, value.as_mut_ptr().expose_provenance() as u64);
        // SAFETY: `key` and `value` outlive the call and have the sizes of the map; the kernel
        // writes `value`, which is borrowed mutably.
        match unsafe { bpf(BPF_MAP_LOOKUP_ELEM, &attr) } {
            Ok(_) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Removes a key, if it is there.
    pub(crate) fn remove(self, key: u32) -> Result<()> {
        let attr = self.elem_attr(&key, 0);
        // SAFETY: `key` outlives the call and has the size of the map's keys; the command reads no
        // value.
        match unsafe { bpf(BPF_MAP_DELETE_ELEM, &attr) } {
            Ok(_) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn elem_attr(self, key: &u32, value: u64) -> MapElemAttr {
        let map_fd = self.map.as_raw_fd().unsigned_abs();
        let key = std::ptr::from_ref(key).expose_provenance() as u64;
        MapElemAttr { map_fd, padding: 0, key, value, flags: 0 }
    }
}

/// Freezes a map (since Linux 5.2): processes can no longer map it writable or change it by bpf(2).
/// Programs can still change it.
pub(crate) fn freeze_map(map: impl AsFd) -> Result<()> {
    let attr = MapFreezeAttr { map_fd: map.as_fd().as_raw_fd().unsigned_abs() };
    // SAFETY: `attr` has no addresses.
    unsafe { bpf(BPF_MAP_FREEZE, &attr) }.map(drop)
}

/// Returns the id of a map, which is unique among all maps of the machine while the map exists.
pub(crate) fn map_id(map: impl AsFd) -> Result<u32> {
    let mut info = MapInfo::default();
    let attr = ObjInfoAttr {
        bpf_fd: map.as_fd().as_raw_fd().unsigned_abs(),
        info_len: size_of_val(&info) as u32,
        info: (&raw mut info).expose_provenance() as u64,
    };
    // SAFETY: `info` outlives the call, is writable, and has `info_len` bytes.
    unsafe { bpf(BPF_OBJ_GET_INFO_BY_FD, &attr) }?;
    Ok(info.id)
}

/// An iterator: the kernel calls a program for each object of a kind, and a read returns the bytes
/// that the program wrote. The iterator advances only while it is read.
pub(crate) struct BpfIter(OwnedFd);

impl BpfIter {
    /// Creates an iterator for a program (since Linux 5.8): over the sockets that have storage in
    /// `map` (since Linux 5.9), or, without a map, over the objects that the program's target
    /// names.
    pub(crate) fn new(program: BorrowedFd<'_>, map: Option<BorrowedFd<'_>>) -> Result<Self> {
        let map_fd = map.map(|map| map.as_raw_fd().unsigned_abs());
        let info = map_fd.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let attr = LinkCreateAttr {
            prog_fd: program.as_raw_fd().unsigned_abs(),
            target_fd: 0,
            attach_type: BPF_TRACE_ITER,
            flags: 0,
            iter_info: info.expose_provenance() as u64,
            iter_info_len: map_fd.as_ref().map_or(0, size_of_val) as u32,
            padding: 0,
        };
        // SAFETY: `map_fd`, to which `iter_info` points, outlives the call and has `iter_info_len`
        // bytes; the command returns a new descriptor.
        let link = unsafe { bpf_new_fd(BPF_LINK_CREATE, &attr) }?;
        let attr = IterCreateAttr { link_fd: link.as_raw_fd().unsigned_abs(), flags: 0 };
        // SAFETY: `attr` has no addresses, and the command returns a new descriptor.
        unsafe { bpf_new_fd(BPF_ITER_CREATE, &attr) }.map(Self)
    }

    /// Advances until `bytes` is full. Returns the number of bytes read, which is smaller only at
    /// the end of the iteration.
    pub(crate) fn read(&self, bytes: &mut [u8]) -> Result<usize> {
        let mut count = 0;
        while count < bytes.len() {
            match rustix::io::read(&self.0, &mut bytes[count..]) {
                Ok(0) => break,
                Ok(more) => count += more,
                // EAGAIN: the kernel has visited a bounded number of objects for which the program
                // wrote nothing. The next read continues there.
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(count)
    }
}
