//! The first messages of a connection to uselectd.

use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use uselect::{CHALLENGE_BYTES, RegistrationReply};

/// Receives the challenge and returns the request: `prefix` and the challenge.
///
/// # Errors
/// The byte of the reply if another reply comes instead; `None` if the daemon closes the
/// connection.
pub(crate) fn receive_challenge(
    connection: impl AsFd,
    prefix: &[u8],
) -> Result<Vec<u8>, Option<u8>> {
    let mut message = [0; 1 + CHALLENGE_BYTES];
    match recv(connection, &mut message[..], RecvFlags::empty()) {
        Ok((0, _)) | Err(Errno::CONNRESET) => Err(None),
        Ok(_) if message[0] != RegistrationReply::Challenge as u8 => Err(Some(message[0])),
        Ok((count, _)) => {
            assert_eq!(count, message.len(), "a challenge arrives in one piece");
            Ok([prefix, &message[1..]].concat())
        }
        Err(error) => panic!("{error}"),
    }
}
