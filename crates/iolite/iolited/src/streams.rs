//! The ends of pipes and connections, by what the kernel reports about passed descriptors. Nothing
//! that a client claims about them counts.

use std::os::fd::BorrowedFd;

use iolite::service::{FileKey, Refusal};
use millrace_sys::{FileAccess, InodeKind, StreamFamily, TcpConnection};

/// A direction of a pipe or a connection, as one end sees it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct StreamEnd {
    stream: StreamName,
    writes: bool,
    /// Only processes of one user get to each other: the kernel numbers pipes and sockets by a
    /// counter of 32 bits, so another one can have the number of one that was closed.
    user: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum StreamName {
    Pipe(FileKey),
    /// The inodes of both sockets.
    Unix {
        own: u64,
        peer: u64,
    },
    Tcp(TcpConnection),
}

impl StreamEnd {
    /// Finds out which end of what a descriptor is. Returns it with the number of the socket, which
    /// no other one ever has; 0 for a pipe.
    ///
    /// # Errors
    /// The reason why it can have no channel.
    pub(crate) fn of(
        file: BorrowedFd<'_>,
        writes: bool,
        user: u32,
    ) -> Result<(Self, u64), Refusal> {
        let access = millrace_sys::file_access(file).map_err(Refusal::Kernel)?;
        let status = millrace_sys::inode_status(file).map_err(Refusal::Kernel)?;
        let (stream, number) = match status.kind {
            InodeKind::Pipe if access.reads != access.writes && access.writes == writes => {
                (StreamName::Pipe(FileKey { device: status.device, inode: status.inode }), 0)
            }
            InodeKind::Socket => socket(file, access, status.inode)?,
            _ => return Err(Refusal::NotStream),
        };
        Ok((Self { stream, writes, user }, number))
    }

    /// Returns the other end of the same direction.
    pub(crate) fn other(self) -> Self {
        let stream = match self.stream {
            StreamName::Pipe(pipe) => StreamName::Pipe(pipe),
            StreamName::Unix { own, peer } => StreamName::Unix { own: peer, peer: own },
            StreamName::Tcp(connection) => StreamName::Tcp(connection.other_end()),
        };
        Self { stream, writes: !self.writes, ..self }
    }
}

fn socket(
    socket: BorrowedFd<'_>,
    access: FileAccess,
    inode: u64,
) -> Result<(StreamName, u64), Refusal> {
    if !access.reads || !access.writes {
        // It only names a file (O_PATH).
        return Err(Refusal::NotStream);
    }
    let family = millrace_sys::stream_family(socket).map_err(Refusal::Kernel)?;
    let number = millrace_sys::socket_number(socket).map_err(Refusal::Kernel)?;
    let stream = match family.ok_or(Refusal::NotStream)? {
        StreamFamily::Unix => {
            let peer = millrace_sys::unix_peer(socket).map_err(Refusal::Kernel)?;
            (peer != 0).then_some(StreamName::Unix { own: inode, peer })
        }
        StreamFamily::Tcp => {
            let connection = millrace_sys::tcp_connection(socket).map_err(Refusal::Kernel)?;
            connection.filter(TcpConnection::is_within_host).map(StreamName::Tcp)
        }
    };
    Ok((stream.ok_or(Refusal::NotStream)?, number))
}
