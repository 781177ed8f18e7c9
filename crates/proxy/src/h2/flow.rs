//! Flow-control accounts (RFC 9113 §5.2, §6.9), one per stream and direction and one per connection and direction.
//!
//! Between a sender and a receiver stand two windows: `room`, what the receiver takes, and `credit`, what the sender may
//! still send. A relay that only passes frames keeps them equal. What the sidecar keeps, discards or makes moves them apart,
//! and one rule brings them together again:
//!
//! > the sender may be granted `room − credit − waiting`, where `waiting` are octets kept here that may leave as soon as
//! > the receiver has room.
//!
//! From it follows all of trap 2: octets that are parked (not yet `waiting`) or discarded are granted back at once; those
//! released count as waiting and then as sent, so that the grant turns negative, a *debt*, which the receiver's next
//! WINDOW_UPDATEs pay before any of them passes; octets the sidecar made are debt as well; padding it strips is granted back.
//!
//! Invariant: `credit` never exceeds `room` by a grant of ours, so no window is ever overrun at a receiver, and once
//! nothing waits, every octet of the receiver's window is the sender's again.

/// The largest window (RFC 9113 §6.9.1).
pub(crate) const MAX_WINDOW: i64 = (1 << 31) - 1;
/// The initial window of a connection, and of a stream unless SETTINGS say otherwise.
pub(crate) const DEFAULT_WINDOW: i64 = 65_535;

/// Both windows of one direction. Negative after a SETTINGS_INITIAL_WINDOW_SIZE that lowered them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Account {
    pub(crate) room: i64,
    pub(crate) credit: i64,
}

impl Account {
    pub(crate) fn new(window: i64) -> Self {
        Self { room: window, credit: window }
    }

    /// Octets arrived from the sender; whether it was allowed to send them.
    pub(crate) fn receive(&mut self, octets: usize) -> bool {
        self.credit -= octets as i64;
        self.credit >= 0
    }

    /// The receiver's WINDOW_UPDATE; whether the window stays within its maximum.
    pub(crate) fn widen(&mut self, increment: u32) -> bool {
        self.room += i64::from(increment);
        self.room <= MAX_WINDOW
    }

    /// SETTINGS_INITIAL_WINDOW_SIZE changed (RFC 9113 §6.9.2); whether the window stays within its maximum.
    pub(crate) fn shift(&mut self, delta: i64) -> bool {
        self.room += delta;
        self.credit += delta;
        self.room <= MAX_WINDOW
    }

    /// Give the sender what it is due, with `waiting` octets still here: the increment of its WINDOW_UPDATE, or 0.
    pub(crate) fn grant(&mut self, waiting: usize) -> u32 {
        let due = (self.room - self.credit - waiting as i64).clamp(0, MAX_WINDOW);
        self.credit += due;
        due as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn released_octets_are_debt_that_later_updates_pay_first() {
        let mut account = Account::new(100);
        // 60 octets are taken off the wire and parked: granted back at once.
        assert!(account.receive(60));
        assert_eq!(account.grant(0), 60);
        // Released: they wait, then leave.
        assert_eq!(account.grant(60), 0);
        account.room -= 60;
        assert_eq!(account.grant(0), 0);
        // The receiver consumed them; its updates pay the debt, the rest passes.
        assert!(account.widen(50));
        assert_eq!(account.grant(0), 0);
        assert!(account.widen(30));
        assert_eq!(account.grant(0), 20);
        assert_eq!(account, Account { room: 120, credit: 120 });
    }

    #[test]
    fn discarded_octets_owe_nothing() {
        let mut account = Account::new(100);
        assert!(account.receive(100));
        assert!(!account.receive(1));
        assert_eq!(account.grant(0), 101);
        assert_eq!(account, Account::new(100));
    }
}
