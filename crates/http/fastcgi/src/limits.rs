//! The bounds of this crate.

/// The most bytes of content in one record: the greatest multiple of 8 that its length can state,
/// so that a record needs no padding.
pub const CONTENT_BYTES_MAX: usize = 65_528;

/// The most bytes of a program's standard error that are kept until they are taken. Later ones are
/// dropped.
pub const ERROR_BYTES_MAX: usize = 8192;

/// The most bytes of a request's environment that a FastCGI server reads: more than the header of a
/// request can have.
pub const ENVIRONMENT_BYTES_MAX: usize = 512 * 1024;

/// The most variables of a request's environment that a FastCGI server reads.
pub const VARIABLES_MAX: usize = 8192;

/// The most lines of a CGI header.
pub const HEADER_LINES_MAX: usize = 256;
