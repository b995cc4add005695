//! Every bound that this crate keeps by itself, with what happens at it. The sizes of heads are
//! their caller's: [`HeadLimits`](crate::HeadLimits).

/// Bytes of a method. The longest that is registered has 17. Above: `HeadError::MethodTooLong`.
pub(crate) const METHOD_BYTES_MAX: usize = 32;

/// Options in all `Connection` fields of a head. Each is compared with each field, so without a
/// bound the work would grow with the square of a head. Above:
/// `HeadError::ConnectionOptionsTooMany`.
pub(crate) const CONNECTION_OPTIONS_MAX: usize = 32;

/// Protocols in all `Upgrade` fields of a head. Each one of a response is compared with each one of
/// its request. Above: `HeadError::UpgradeProtocolsTooMany`.
pub(crate) const UPGRADE_PROTOCOLS_MAX: usize = 8;

/// Empty members in all `Connection` fields of a head, and in all its `Upgrade` fields: RFC 9110
/// section 5.6.1.2 asks a recipient to ignore a reasonable number. Above: as for members that are
/// not empty.
pub(crate) const EMPTY_MEMBERS_MAX: usize = 32;

/// Bytes of a host name, RFC 1035 section 2.3.4. Above: `TargetError::HostInvalid`.
pub(crate) const HOST_BYTES_MAX: usize = 253;

/// Bytes of one label of a host name, RFC 1035 section 2.3.4. Above: `TargetError::HostInvalid`.
pub(crate) const LABEL_BYTES_MAX: usize = 63;

/// Digits of a chunk size, leading zeros included. Above: `ChunkError::SizeTooLong`.
pub(crate) const CHUNK_SIZE_DIGITS_MAX: u8 = 16;

/// Bytes of the extensions of one chunk. Above: `ChunkError::ExtensionsTooLong`.
pub(crate) const EXTENSION_BYTES_MAX: u16 = 256;

/// Bytes of all extensions of one body. Above: `ChunkError::ExtensionsTooLong`.
pub(crate) const EXTENSION_BYTES_ALL_MAX: u32 = 16 * 1024;

/// Trailer lines of one body. Above: `ChunkError::TrailersTooMany`.
pub(crate) const TRAILERS_MAX: u16 = 64;

/// Bytes of all trailer lines of one body, line ends included, each as received or as it goes on,
/// whichever is longer. Above: `ChunkError::TrailersTooLong`.
pub(crate) const TRAILER_BYTES_MAX: usize = 8 * 1024;

/// Bytes of a version 1 PROXY header, from its specification. Above: `ProxyHeaderError::TooLong`.
pub(crate) const PROXY_V1_BYTES_MAX: usize = 107;

/// Bytes that a version 2 PROXY header may announce after its first 16. Above:
/// `ProxyHeaderError::TooLong`.
pub(crate) const PROXY_V2_BYTES_MAX: usize = 4096;

/// The largest body length and chunk size that is believed: origins keep it in a signed 64-bit
/// number, and more would be negative there.
pub(crate) const BODY_BYTES_MAX: u64 = i64::MAX as u64;
