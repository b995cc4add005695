//! The shared file cache, iolited(8): its messages, and the client's side.
//!
//! ```text
//!   client                                   iolited
//!   open(2), fstat(2)
//!   Request::Read ── descriptor ──────────>  checks it, reads the file once into sealed memory
//!   reads the memory <─── its pieces ──────  Response::Pieces
//! ```
//!
//! The client opens the file itself. A process that can pass a readable descriptor of a file may
//! read it, so the daemon needs no privilege and checks no permission. The memory that it passes
//! back is sealed: neither the daemon nor any other client can change it. docs/design/file-cache.md
//! has the reasons.

mod client;
mod connection;
mod counters;
mod kept;
mod kept_packs;
mod link;
mod message;
mod pack;
mod stream_calls;
mod stream_reader;
mod stream_state;
mod stream_writer;
mod streams;
mod version;
mod whole_file;
mod write;

use std::path::PathBuf;

pub use client::FileClient;
pub use counters::ClientStats;
pub use message::{
    PIECES_PER_PACKET_MAX, PieceRange, REQUEST_BYTES_MAX, RESPONSE_BYTES_MAX, Refusal, Request,
    Response, fuzz_file_messages,
};
pub use pack::{PackedFile, files_of_pack, fuzz_packs, pack_bytes, pack_of};
pub use version::{FileKey, FileVersion};

/// Files are cached in pieces of this many bytes, at offsets that are multiples of it. Slices that
/// were written can be shorter, and anywhere.
pub const PIECE_BYTES: u64 = crate::limits::BLOCK_BYTES as u64;
/// Shorter files are copied by the kernel, unless a pack has them: copying one costs less than
/// mapping it.
pub const SHARED_FILE_BYTES_MIN: u64 = 32 * 1024;
/// The path of the daemon's socket, unless an option or a variable says otherwise. The folder is
/// the daemon's: a client trusts its owner.
pub const DEFAULT_SOCKET: &str = "/run/iolited/iolited.sock";

/// Returns the path of the daemon's socket: the value of `IOLITED_SOCKET`, or [`DEFAULT_SOCKET`].
/// A process that has got privileges by being started (set-user-id) ignores the variable.
pub fn socket_path() -> PathBuf {
    let chosen = std::env::var_os("IOLITED_SOCKET").filter(|path| !path.is_empty());
    let chosen = chosen.filter(|_| !millrace_sys::has_started_privileged());
    chosen.map_or_else(|| DEFAULT_SOCKET.into(), PathBuf::from)
}
