//! The fixed limits of this crate, and the error when one is exceeded. The limits on headers come
//! from the caller: [`HeadLimits`](crate::HeadLimits).

/// Maximum bytes of a method. The longest registered one has 17. Error: `HeadError::MethodTooLong`.
pub(crate) const METHOD_BYTES_MAX: usize = 32;

/// Maximum number of options in all `Connection` fields of a header. Each is compared with each
/// field, so without a limit the work would grow with the square of the header's length. Error:
/// `HeadError::ConnectionOptionsTooMany`.
pub(crate) const CONNECTION_OPTIONS_MAX: usize = 32;

/// Maximum number of protocols in all `Upgrade` fields of a header. Each protocol of a response is
/// compared with each protocol of its request. Error: `HeadError::UpgradeProtocolsTooMany`.
pub(crate) const UPGRADE_PROTOCOLS_MAX: usize = 8;

/// Maximum number of empty members in all `Connection` fields of a header, and also in all its
/// `Upgrade` fields. RFC 9110 section 5.6.1.2 requires a recipient to ignore a reasonable number.
/// Error: the same as for members that are not empty.
pub(crate) const EMPTY_MEMBERS_MAX: usize = 32;

/// Maximum bytes of a host name (RFC 1035 section 2.3.4). Error: `TargetError::HostInvalid`.
pub(crate) const HOST_BYTES_MAX: usize = 253;

/// Maximum bytes of one label of a host name (RFC 1035 section 2.3.4). Error:
/// `TargetError::HostInvalid`.
pub(crate) const LABEL_BYTES_MAX: usize = 63;

/// Maximum digits of a chunk size, leading zeros included. Error: `ChunkError::SizeTooLong`.
pub(crate) const CHUNK_SIZE_DIGITS_MAX: u8 = 16;

/// Maximum bytes of the extensions of one chunk, including the CR after them. Error:
/// `ChunkError::ExtensionsTooLong`.
pub(crate) const EXTENSION_BYTES_MAX: u16 = 256;

/// Maximum bytes of all extensions of one body, including the CR after those of each chunk. Error:
/// `ChunkError::ExtensionsTooLong`.
pub(crate) const EXTENSION_BYTES_ALL_MAX: u32 = 16 * 1024;

/// Maximum number of trailer lines of one body. Error: `ChunkError::TrailersTooMany`.
pub(crate) const TRAILERS_MAX: u16 = 64;

/// Maximum bytes of all trailer lines of one body, line ends included. A line counts in its
/// received or its forwarded form, whichever is longer. Error: `ChunkError::TrailersTooLong`.
pub(crate) const TRAILER_BYTES_MAX: usize = 8 * 1024;

/// Maximum bytes of a PROXY header version 1, from its specification. Error:
/// `ProxyHeaderError::TooLong`.
pub(crate) const PROXY_V1_BYTES_MAX: usize = 107;

/// Maximum bytes that a PROXY header version 2 may announce after its first 16. Error:
/// `ProxyHeaderError::TooLong`.
pub(crate) const PROXY_V2_BYTES_MAX: usize = 4096;

/// The largest accepted body length and chunk size. Some origins store lengths in a signed 64-bit
/// number, in which a larger value would be negative.
pub(crate) const BODY_BYTES_MAX: u64 = i64::MAX as u64;
