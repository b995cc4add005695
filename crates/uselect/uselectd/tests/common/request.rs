//! The beginning of a connection to uselectd, byte by byte.

use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use uselect::{CHALLENGE_BYTES, RegistrationReply};

/// What is to be sent where `begin` is the request without its last bytes: those of the challenge,
/// which is taken. If another answer comes instead, its byte; `None` at the end.
pub(crate) fn request(connection: impl AsFd, begin: &[u8]) -> Result<Vec<u8>, Option<u8>> {
    let mut message = [0; 1 + CHALLENGE_BYTES];
    match recv(connection, &mut message[..], RecvFlags::empty()) {
        Ok((0, _)) | Err(Errno::CONNRESET) => Err(None),
        Ok(_) if message[0] != RegistrationReply::Challenge as u8 => Err(Some(message[0])),
        Ok((count, _)) => {
            assert_eq!(count, message.len(), "a challenge comes as a whole");
            Ok([begin, &message[1..]].concat())
        }
        Err(error) => panic!("{error}"),
    }
}
