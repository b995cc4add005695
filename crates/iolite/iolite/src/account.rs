//! Accounts: how much memory of another process is held here.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The memory that one sender may have this process hold. Clones are the same account.
///
/// Memory that a process passes on stays with its receiver when the sender is gone, and the kernel
/// charges it to no process then. So the receiver counts it.
#[derive(Clone, Debug)]
pub struct Account(Arc<AccountState>);

#[derive(Debug)]
struct AccountState {
    bytes_max: u64,
    /// Relaxed: it is ordered with no other memory.
    held: AtomicU64,
    /// The number of charges. Relaxed, likewise.
    charges: AtomicUsize,
}

/// A charge to an account, which is refunded when this is dropped.
#[derive(Debug)]
pub(crate) struct Charge {
    account: Account,
    bytes: u64,
}

impl Account {
    /// Creates an account of `bytes_max` bytes.
    pub fn new(bytes_max: u64) -> Self {
        let (held, charges) = (AtomicU64::new(0), AtomicUsize::new(0));
        Self(Arc::new(AccountState { bytes_max, held, charges }))
    }

    /// Returns the most bytes that are held at a time.
    pub fn bytes_max(&self) -> u64 {
        self.0.bytes_max
    }

    /// Returns the bytes that are held.
    pub fn held(&self) -> u64 {
        self.0.held.load(Ordering::Relaxed)
    }

    /// Returns the number of files that are held.
    pub(crate) fn charges(&self) -> usize {
        self.0.charges.load(Ordering::Relaxed)
    }

    /// Charges `bytes`; returns `None` if the account has too few left.
    pub(crate) fn charge(&self, bytes: u64) -> Option<Charge> {
        let add = |held: u64| held.checked_add(bytes).filter(|held| *held <= self.0.bytes_max);
        self.0.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).ok()?;
        self.0.charges.fetch_add(1, Ordering::Relaxed);
        Some(Charge { account: self.clone(), bytes })
    }
}

impl Charge {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.account.0.charges.fetch_sub(1, Ordering::Relaxed);
        self.account.0.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_is_never_overdrawn() {
        let account = Account::new(10);
        let six = account.charge(6).unwrap();
        assert!(account.charge(5).is_none() && account.charge(u64::MAX).is_none());
        let four = account.clone().charge(4).unwrap();
        assert_eq!((account.held(), account.bytes_max()), (10, 10));
        drop(six);
        assert_eq!(account.held(), 4);
        drop(four);
        assert!(account.charge(10).is_some());
    }
}
