//! `struct iol_channel`: one end of a connection to another process.

use std::ffi::{CString, c_char, c_int};
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};

use iolite::{Channel, ChannelError, ChannelOptions, Received, limits};

use crate::aggregate::CAggregate;
use crate::error::{AGAIN, INVALID, Result, channel_error, memory_error};
use crate::layout::{CChannelOptions, JOIN_POOLS, NO_RING};
use crate::object::{self, CObject, consume};
use crate::pointers::{owned_fd, store, to_c_int, to_int64, to_zero};

/// `struct iol_channel`.
pub type CChannel = CObject<ChannelEnd>;

/// A channel, and the text of its last error.
pub struct ChannelEnd {
    pub(crate) channel: Channel,
    text: CString,
}

impl ChannelEnd {
    /// Calls `call`, and keeps the text of its error.
    fn call<T>(
        &mut self,
        call: impl FnOnce(&mut Channel) -> std::result::Result<T, ChannelError>,
    ) -> Result<T> {
        call(&mut self.channel).map_err(|error| {
            // No text has a zero byte.
            self.text = CString::new(error.to_string()).unwrap_or_default();
            channel_error(error)
        })
    }
}

/// iol_channel_create(3): stores the two descriptors of a socket in `fds`.
///
/// # Safety
/// `fds` is null or has room for two descriptors.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_channel_sockets(fds: *mut c_int) -> c_int {
    if fds.is_null() {
        return INVALID;
    }
    let sockets = consume((), |()| iolite::channel_sockets().map_err(memory_error));
    let store_both = |(one, other): (OwnedFd, OwnedFd)| {
        let both = [one, other].map(IntoRawFd::into_raw_fd);
        // SAFETY: not null, and room for two by this function's contract.
        unsafe { store(fds.cast(), both) }
    };
    to_zero(sockets.and_then(store_both))
}

/// iol_channel_create(3): begins a channel on a socket, which the channel owns, and stores it in
/// `*channel`.
///
/// # Safety
/// `channel` is null or has room for a pointer. Nothing else closes the socket. `options` is null
/// or has the fields that the man page describes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_channel_create(
    channel: *mut *mut CChannel,
    socket: c_int,
    options: *const CChannelOptions,
) -> c_int {
    // SAFETY: nothing else closes it, by this function's contract.
    let socket = unsafe { owned_fd(socket) };
    let make = move || {
        let socket = socket?;
        // SAFETY: null or options, by this function's contract.
        let options = unsafe { options.as_ref() }.ok_or(INVALID)?;
        // SAFETY: its pointers are valid by this function's contract.
        let options = unsafe { parse_options(options) }?;
        let channel = Channel::new(socket, options).map_err(channel_error)?;
        Ok(ChannelEnd { channel, text: CString::default() })
    };
    // SAFETY: null or room, by this function's contract.
    to_c_int(unsafe { object::create(channel, make) })
}

/// Parses options, in which 0 is the default.
///
/// # Safety
/// `slab` and `account` are null or objects of this library that were not destroyed.
unsafe fn parse_options(options: &CChannelOptions) -> Result<ChannelOptions> {
    let has = |flag| options.flags & flag != 0;
    if options.flags & !(JOIN_POOLS | NO_RING) != 0
        || options.reserved != 0
        || options.ring_frames > limits::RING_FRAMES_MAX
        || (has(NO_RING) && options.ring_frames != 0)
    {
        return Err(INVALID);
    }
    // SAFETY: null or a slab, by this function's contract.
    let slab = unsafe { object::get(options.slab) }?;
    let mut parsed = ChannelOptions::new(slab.clone());
    parsed.joins_pools = has(JOIN_POOLS);
    if has(NO_RING) || options.ring_frames != 0 {
        parsed.ring_frames = options.ring_frames;
    }
    if options.copied_max != 0 {
        parsed.copied_max = options.copied_max;
    }
    if options.in_flight_max != 0 {
        parsed.in_flight_max = options.in_flight_max;
    }
    if !options.account.is_null() {
        // SAFETY: an account, by this function's contract.
        parsed.account = unsafe { object::get(options.account) }?.clone();
    }
    Ok(parsed)
}

/// iol_channel_create(3): waits until the other process has received everything, and destroys the
/// channel.
///
/// # Safety
/// `channel` is null or a channel from [`iol_channel_create`] that is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_channel_close(channel: *mut CChannel) -> c_int {
    // SAFETY: this function has the same contract.
    let end = unsafe { object::take(channel) };
    let close = |end: ChannelEnd| end.channel.close().map_err(channel_error);
    to_zero(end.and_then(|end| consume(end, close)))
}

/// iol_channel_create(3): destroys a channel without waiting.
///
/// # Safety
/// As for [`iol_channel_close`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_channel_destroy(channel: *mut CChannel) {
    // SAFETY: this function has the same contract.
    unsafe { object::destroy(channel) };
}

/// iol_channel_send(3): sends an aggregate, and waits until there is room for it.
///
/// # Safety
/// `channel` is null or a channel from [`iol_channel_create`] that was not destroyed, and no other
/// thread uses it during the call. `aggregate` is null or an aggregate of this library that was not
/// destroyed, and no other thread changes it during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_channel_send(
    channel: *mut CChannel,
    aggregate: *const CAggregate,
) -> c_int {
    let call = |end: &mut ChannelEnd| {
        // SAFETY: null or an aggregate, by this function's contract.
        let aggregate = unsafe { object::get(aggregate) }?;
        end.call(|channel| channel.send(aggregate))
    };
    // SAFETY: this function has the same contract.
    to_zero(unsafe { object::with_mut(channel, call) })
}

/// iol_channel_send(3): begins to send an aggregate if there is room for one.
///
/// # Safety
/// As for [`iol_channel_send`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_channel_try_send(
    channel: *mut CChannel,
    aggregate: *const CAggregate,
) -> c_int {
    let call = |end: &mut ChannelEnd| {
        // SAFETY: null or an aggregate, by this function's contract.
        let aggregate = unsafe { object::get(aggregate) }?;
        let is_taken = end.call(|channel| channel.try_send(aggregate))?;
        if is_taken { Ok(()) } else { Err(AGAIN) }
    };
    // SAFETY: as for iol_channel_send.
    to_zero(unsafe { object::with_mut(channel, call) })
}

/// iol_channel_send(3): sends the rest of an aggregate.
///
/// # Safety
/// As for [`iol_channel_send`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_channel_flush(channel: *mut CChannel) -> c_int {
    let call = |end: &mut ChannelEnd| {
        let is_all = end.call(Channel::flush)?;
        if is_all { Ok(()) } else { Err(AGAIN) }
    };
    // SAFETY: as for iol_channel_send.
    to_zero(unsafe { object::with_mut(channel, call) })
}

/// iol_channel_receive(3): waits for the next aggregate, and stores it in `*aggregate`. Returns 0
/// at the end.
///
/// # Safety
/// As for [`iol_channel_send`]. `aggregate` is null or has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_channel_receive(
    channel: *mut CChannel,
    aggregate: *mut *mut CAggregate,
) -> c_int {
    let receive = |channel: &mut Channel| {
        let next = channel.receive()?;
        Ok(next.map_or(Received::Ended, Received::Aggregate))
    };
    // SAFETY: as for iol_channel_send, and null or room by this function's contract.
    unsafe { receive_by(channel, aggregate, receive) }
}

/// iol_channel_receive(3): stores the next aggregate in `*aggregate` if it is there. Returns 0 at
/// the end.
///
/// # Safety
/// As for [`iol_channel_receive`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_channel_try_receive(
    channel: *mut CChannel,
    aggregate: *mut *mut CAggregate,
) -> c_int {
    // SAFETY: as for iol_channel_receive.
    unsafe { receive_by(channel, aggregate, Channel::try_receive) }
}

/// Stores the aggregate that `receive` returns, if it returns one.
///
/// # Safety
/// As for [`iol_channel_receive`].
unsafe fn receive_by(
    channel: *mut CChannel,
    aggregate: *mut *mut CAggregate,
    receive: impl FnOnce(&mut Channel) -> std::result::Result<Received, ChannelError>,
) -> c_int {
    if aggregate.is_null() {
        return INVALID;
    }
    let call = |end: &mut ChannelEnd| match end.call(receive)? {
        Received::Aggregate(received) => {
            // SAFETY: not null, and room by this function's contract.
            unsafe { object::create(aggregate, || Ok(received)) }?;
            Ok(1)
        }
        Received::Ended => Ok(0),
        Received::Nothing => Err(AGAIN),
    };
    // SAFETY: as for iol_channel_send.
    to_c_int(unsafe { object::with_mut(channel, call) })
}

/// iol_channel_receive(3): returns the descriptor for poll(2).
///
/// # Safety
/// As for [`iol_channel_send`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_channel_fd(channel: *const CChannel) -> c_int {
    let call = |end: &ChannelEnd| Ok(end.channel.socket().as_raw_fd());
    // SAFETY: as for iol_channel_send.
    to_c_int(unsafe { object::with(channel, call) })
}

/// iol_channel_receive(3): makes the descriptor readable for what comes next. Returns 1 if there is
/// something to receive already, otherwise 0.
///
/// # Safety
/// As for [`iol_channel_send`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_channel_prepare_to_wait(channel: *mut CChannel) -> c_int {
    let call = |end: &mut ChannelEnd| Ok(c_int::from(end.call(Channel::prepare_to_wait)?));
    // SAFETY: as for iol_channel_send.
    to_c_int(unsafe { object::with_mut(channel, call) })
}

/// iol_channel_receive(3): returns the number of files of pools that were mapped.
///
/// # Safety
/// As for [`iol_channel_send`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_channel_maps(channel: *const CChannel) -> i64 {
    // SAFETY: as for iol_channel_send.
    to_int64(unsafe { object::with(channel, |end| Ok(end.channel.maps())) })
}

/// iol_strerror(3): returns the text of the last error of a channel, which is valid until the next
/// call for the channel. Never null.
///
/// # Safety
/// As for [`iol_channel_send`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_channel_error(channel: *const CChannel) -> *const c_char {
    // SAFETY: as for iol_channel_send.
    let text = unsafe { object::with(channel, |end| Ok(end.text.as_ptr())) };
    text.unwrap_or(c"".as_ptr())
}
