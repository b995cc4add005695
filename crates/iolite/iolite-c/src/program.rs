//! `struct iol_program` and `struct iol_request`: a program that responds to the requests of
//! servers.

use std::ffi::{CStr, OsStr, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::Mutex;

use iolite::{Aggregate, Interrupter, ProgramListener, ProgramRequest};

use crate::aggregate::CAggregate;
use crate::error::{BROKEN, INVALID, Result, channel_error, memory_error};
use crate::object::{self, CObject, consume};
use crate::pointers::{bytes, to_c_int, to_zero};

/// `struct iol_program`.
pub type CProgram = CObject<Program>;

/// A listener, and a way to interrupt it while a thread uses it.
pub struct Program {
    /// No thread waits for this lock, as one thread at a time may use the listener.
    listener: Mutex<ProgramListener>,
    interrupter: Interrupter,
}

impl Program {
    fn new(listener: ProgramListener) -> Self {
        let interrupter = listener.interrupter();
        Self { listener: Mutex::new(listener), interrupter }
    }

    fn with_listener<R>(&self, call: impl FnOnce(&mut ProgramListener) -> Result<R>) -> Result<R> {
        call(&mut *self.listener.lock().map_err(|_| BROKEN)?)
    }
}

/// `struct iol_request`.
pub type CRequest = CObject<ProgramRequest>;

/// Returns a string of C.
///
/// # Safety
/// `text` is null or a string that stays unchanged for the lifetime of the result.
unsafe fn string<'a>(text: *const c_char) -> Result<&'a CStr> {
    if text.is_null() {
        return Err(INVALID);
    }
    // SAFETY: not null, and a string by this function's contract.
    Ok(unsafe { CStr::from_ptr(text) })
}

/// iol_program_create(3): stores a program that listens at `path` in `*program`.
///
/// # Safety
/// `program` is null or has room for a pointer. `path` is null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_program_create(
    program: *mut *mut CProgram,
    path: *const c_char,
    mode: c_uint,
) -> c_int {
    let make = || {
        // SAFETY: null or a string, by this function's contract.
        let path = unsafe { string(path) }?.to_bytes();
        if path.is_empty() {
            // bind(2) would take it for an abstract address.
            return Err(INVALID);
        }
        let path = Path::new(OsStr::from_bytes(path));
        ProgramListener::bind(path, mode).map(Program::new).map_err(memory_error)
    };
    // SAFETY: null or room, by this function's contract.
    to_c_int(unsafe { object::create(program, make) })
}

/// iol_program_create(3): destroys a program, whose servers see that it has gone.
///
/// # Safety
/// `program` is null or a program of this library that is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_program_destroy(program: *mut CProgram) {
    // SAFETY: this function has the same contract.
    unsafe { object::destroy(program) };
}

/// iol_program_create(3): waits until all responses were received, and destroys the program.
///
/// # Safety
/// `program` is null or a program of this library that is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_program_close(program: *mut CProgram) -> c_int {
    let close = |program: Program| {
        program.listener.into_inner().map_err(|_| BROKEN)?.close();
        Ok(())
    };
    // SAFETY: this function has the same contract.
    let taken = unsafe { object::take(program) };
    to_zero(taken.and_then(|program| consume(program, close)))
}

/// iol_program_receive(3): interrupts the current or the next call of [`iol_program_receive`]. Safe
/// in signal handlers.
///
/// # Safety
/// `program` is null or a program of this library that is not destroyed during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_program_interrupt(program: *const CProgram) -> c_int {
    // SAFETY: null or a program, by this function's contract. Calls that use it at the same time
    // change it only behind its lock.
    let program = unsafe { object::get(program) };
    to_zero(program.map(|program| program.interrupter.interrupt()))
}

/// iol_program_receive(3): waits for a request, and stores it in `*request`.
///
/// # Safety
/// `program` is null or a program of this library that nothing else uses during the call, except
/// [`iol_program_interrupt`]. `request` is null or has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_program_receive(
    program: *mut CProgram,
    request: *mut *mut CRequest,
) -> c_int {
    if request.is_null() {
        return INVALID;
    }
    let receive = |listener: &mut ProgramListener| listener.receive().map_err(memory_error);
    // SAFETY: null or a program, by this function's contract.
    let make = || unsafe { object::with(program, |program| program.with_listener(receive)) };
    // SAFETY: null or room, by this function's contract.
    to_c_int(unsafe { object::create(request, make) })
}

/// iol_program_respond(3): responds to a request.
///
/// # Safety
/// `program` is null or a program of this library that nothing else uses during the call, except
/// [`iol_program_interrupt`]. `request` is null or a request of it that was not destroyed. `header`
/// is null or has `header_bytes` bytes. `body` is null or an aggregate of this library that no
/// other thread changes during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_program_respond(
    program: *mut CProgram,
    request: *const CRequest,
    header: *const c_void,
    header_bytes: usize,
    body: *const CAggregate,
) -> c_int {
    let respond = |listener: &mut ProgramListener| {
        // SAFETY: null or a request, by this function's contract.
        let request = unsafe { object::get(request) }?;
        // SAFETY: null or that many bytes, by this function's contract.
        let header = unsafe { bytes(header, header_bytes) }?;
        let body = match body.is_null() {
            true => Aggregate::new(),
            // SAFETY: an aggregate, by this function's contract.
            false => unsafe { object::get(body) }?.clone(),
        };
        listener.respond(request, header, body).map_err(channel_error)
    };
    // SAFETY: null or a program, by this function's contract.
    to_zero(unsafe { object::with(program, |program| program.with_listener(respond)) })
}

/// iol_program_receive(3): returns the value of a variable; null if it is not set.
///
/// # Safety
/// `request` is null or a request of this library that was not destroyed. `name` is null or a
/// string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_request_variable(
    request: *const CRequest,
    name: *const c_char,
) -> *const c_char {
    let find = |request: &ProgramRequest| {
        // SAFETY: null or a string, by this function's contract.
        let name = unsafe { string(name) }?;
        request.variable_c(name.to_bytes()).map(CStr::as_ptr).ok_or(INVALID)
    };
    // SAFETY: null or a request, by this function's contract.
    unsafe { object::with(request, find) }.unwrap_or(ptr::null())
}

/// iol_program_receive(3): stores the body of a request in `*body`.
///
/// # Safety
/// `request` is null or a request of this library that was not destroyed. `body` is null or has
/// room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_request_body(
    request: *const CRequest,
    body: *mut *mut CAggregate,
) -> c_int {
    // SAFETY: null or a request, by this function's contract.
    let make = || unsafe { object::with(request, |request| Ok(request.body().clone())) };
    // SAFETY: null or room, by this function's contract.
    to_c_int(unsafe { object::create(body, make) })
}

/// iol_program_receive(3): destroys a request.
///
/// # Safety
/// `request` is null or a request of this library that is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_request_destroy(request: *mut CRequest) {
    // SAFETY: this function has the same contract.
    unsafe { object::destroy(request) };
}
