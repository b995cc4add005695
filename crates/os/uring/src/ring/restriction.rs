//! The restriction of a ring to the operations of this crate, for the rest of its life. An attacker
//! who controls a ring's memory or descriptor cannot use it to open a file, start a connection, or
//! lend it memory permanently.

use std::os::fd::BorrowedFd;

use rustix::io_uring::{
    IoringOp, IoringRegisterOp, IoringRestrictionOp, IoringSqeFlags, io_uring_register,
    io_uring_restriction, register_or_sqe_op_or_sqe_flags_union as RuleValue,
};

use crate::Result;

/// All operations that [`Ring`](super::Ring) queues.
const OPERATIONS: [IoringOp; 4] =
    [IoringOp::PollAdd, IoringOp::AsyncCancel, IoringOp::Recv, IoringOp::Send];

/// Restricts a ring that was set up disabled (IORING_SETUP_R_DISABLED), and enables it for the
/// calling thread, which becomes its single issuer. From then on every other operation completes
/// with EACCES, and every other io_uring_register(2) fails with it.
///
/// # Errors
/// EBADFD if the ring is enabled already; EINVAL before Linux 5.10.
pub(super) fn restrict(fd: BorrowedFd<'_>) -> Result<()> {
    let operation = |sqe_op| rule(IoringRestrictionOp::SqeOp, RuleValue { sqe_op });
    let mut rules: Vec<_> = OPERATIONS.into_iter().map(operation).collect();
    let sqe_flags = IoringSqeFlags::CQE_SKIP_SUCCESS;
    rules.push(rule(IoringRestrictionOp::SqeFlagsAllowed, RuleValue { sqe_flags }));
    // The registered descriptor is unregistered when the ring is dropped.
    let register_op = IoringRegisterOp::UnregisterRingFds;
    rules.push(rule(IoringRestrictionOp::RegisterOp, RuleValue { register_op }));
    let count = rules.len() as u32;
    let (rules, what) = (rules.as_ptr().cast(), IoringRegisterOp::RegisterRestrictions);
    // SAFETY: the argument is `count` restrictions, which outlive the call.
    unsafe { io_uring_register(fd, what, rules, count) }?;
    let what = IoringRegisterOp::RegisterEnableRings;
    // SAFETY: this operation takes no argument.
    unsafe { io_uring_register(fd, what, std::ptr::null(), 0) }?;
    Ok(())
}

fn rule(opcode: IoringRestrictionOp, what: RuleValue) -> io_uring_restriction {
    let mut rule = io_uring_restriction::default();
    rule.opcode = opcode;
    rule.register_or_sqe_op_or_sqe_flags = what;
    rule
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::time::Duration;

    use rustix::io::Errno;
    use rustix::io_uring::io_uring_sqe;

    use super::*;
    use crate::ring::test_ring;
    use crate::{Ring, RingCompletion};

    /// Returns the result of a request with the number 7.
    fn complete(ring: &mut Ring, mut request: io_uring_sqe) -> crate::Result<()> {
        request.user_data.u64_ = 7;
        ring.push(request).unwrap();
        ring.enter(Some(Duration::ZERO)).unwrap();
        match ring.next_completion() {
            Some(RingCompletion::Watched { data: 7, result, .. }) => result.map(drop),
            other => panic!("a forbidden operation completes at once, not with {other:?}"),
        }
    }

    #[test]
    fn other_operations_are_refused() {
        let Some(mut ring) = test_ring(8) else { return };
        let plain = |opcode| io_uring_sqe { opcode, fd: -1, ..io_uring_sqe::default() };
        for opcode in [
            IoringOp::Nop,
            IoringOp::Openat,
            IoringOp::Socket,
            IoringOp::Connect,
            IoringOp::Read,
            IoringOp::ProvideBuffers,
        ] {
            assert_eq!(complete(&mut ring, plain(opcode)), Err(Errno::ACCESS), "{opcode:?}");
        }
        let mut linked = plain(IoringOp::Recv);
        linked.flags = IoringSqeFlags::IO_LINK;
        assert_eq!(complete(&mut ring, linked), Err(Errno::ACCESS), "IO_LINK");
        // An allowed operation fails only because of its descriptor.
        assert_eq!(complete(&mut ring, plain(IoringOp::Recv)), Err(Errno::BADF));
    }

    #[test]
    fn other_registrations_are_refused() {
        let Some(ring) = test_ring(8) else { return };
        let fd: i32 = -1;
        for what in [
            IoringRegisterOp::RegisterFiles,
            IoringRegisterOp::RegisterEventfd,
            IoringRegisterOp::RegisterRestrictions,
            IoringRegisterOp::RegisterRingFds,
        ] {
            let argument = std::ptr::from_ref(&fd).cast();
            // SAFETY: the argument is one word, which the kernel does not read.
            let refused = unsafe { io_uring_register(ring.fd.as_fd(), what, argument, 1) };
            assert_eq!(refused, Err(Errno::ACCESS), "{what:?}");
        }
    }
}
