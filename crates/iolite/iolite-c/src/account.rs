//! `struct iol_account`: how much memory of other processes this one holds.

use std::ffi::c_int;

use iolite::Account;

use crate::object::{self, CObject};
use crate::pointers::{to_c_int, to_int64};

/// `struct iol_account`.
pub type CAccount = CObject<Account>;

/// iol_account_create(3): stores a new account in `*account`, which C owns until
/// [`iol_account_destroy`].
///
/// # Safety
/// `account` is null or has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_account_create(account: *mut *mut CAccount, bytes_max: u64) -> c_int {
    // SAFETY: this function has the same contract.
    to_c_int(unsafe { object::create(account, || Ok(Account::new(bytes_max))) })
}

/// iol_account_create(3): destroys an account. Its charges stay until their slices are destroyed.
///
/// # Safety
/// `account` is null or an account from [`iol_account_create`] that is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_account_destroy(account: *mut CAccount) {
    // SAFETY: this function has the same contract.
    unsafe { object::destroy(account) };
}

/// iol_account_create(3): returns the bytes that are charged.
///
/// # Safety
/// `account` is null or an account from [`iol_account_create`] that was not destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_account_held(account: *const CAccount) -> i64 {
    // SAFETY: this function has the same contract.
    to_int64(unsafe { object::with(account, |account| Ok(account.held())) })
}
