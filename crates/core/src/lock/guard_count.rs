//! The number of guards on one hold, together with the flags that keep others from entering it.
//!
//! Number and flags are one value: a guard that enters and a guard that closes the door change the same word, so that one
//! of the two sees the other, in whichever order memory shows everything else.

use super::sync::{AtomicU64, Ordering};

/// A writer has become a reader, or is about to.
const LOWERED: u64 = 1 << 62;

/// The hold is about to be detached: nobody enters it.
const SEALED: u64 = 1 << 63;

const COUNT: u64 = LOWERED - 1;

pub(crate) struct GuardCount(AtomicU64);

/// The reason why a hold was not entered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refused {
    /// Its last guard has ended.
    Over,
    /// It is about to be detached. If that fails, it may be entered again.
    Sealed,
    /// Only readers may enter.
    Upgrade,
}

/// The guards that are left when one has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum GuardsLeft {
    /// Other guards.
    Others,
    /// No guard: it was the last. If the hold was sealed, somebody may wait for that to end.
    None { sealed: bool },
}

impl GuardCount {
    /// One guard.
    pub(crate) fn one() -> Self {
        Self(AtomicU64::new(1))
    }

    /// How many guards there are.
    pub(crate) fn count(&self) -> u64 {
        self.0.load(Ordering::Acquire) & COUNT
    }

    /// Whether there is a guard and it is about to detach the hold.
    pub(crate) fn is_sealed(&self) -> bool {
        let state = self.0.load(Ordering::Acquire);
        state & COUNT != 0 && state & SEALED != 0
    }

    pub(crate) fn is_lowered(&self) -> bool {
        self.0.load(Ordering::Acquire) & LOWERED != 0
    }

    /// One more guard, beside one that is there: it is neither over nor sealed, because only the single guard seals.
    pub(crate) fn enter_beside(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    /// One more guard, if there is any. `may_enter` is asked whether it may, given whether the hold is lowered.
    pub(crate) fn enter(&self, may_enter: impl Fn(bool) -> bool) -> Result<(), Refused> {
        let mut state = self.0.load(Ordering::Acquire);
        loop {
            if state & COUNT == 0 {
                return Err(Refused::Over);
            }
            if state & SEALED != 0 {
                return Err(Refused::Sealed);
            }
            if !may_enter(state & LOWERED != 0) {
                return Err(Refused::Upgrade);
            }
            match self.0.compare_exchange_weak(state, state + 1, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Ok(()),
                Err(now) => state = now,
            }
        }
    }

    /// From here on only readers enter; false if there are other guards, who may write.
    pub(crate) fn lower(&self) -> bool {
        self.flag_if_alone(LOWERED)
    }

    /// Takes back [`lower`](Self::lower).
    pub(crate) fn raise(&self) {
        self.0.fetch_and(!LOWERED, Ordering::AcqRel);
    }

    /// From here on nobody enters; false if there are other guards.
    pub(crate) fn seal(&self) -> bool {
        self.flag_if_alone(SEALED)
    }

    /// Others may enter again.
    pub(crate) fn unseal(&self) {
        self.0.fetch_and(!SEALED, Ordering::AcqRel);
    }

    fn flag_if_alone(&self, flags: u64) -> bool {
        let alone = |state: u64| (state & COUNT == 1).then_some(state | flags);
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, alone).is_ok()
    }

    /// One guard less. The last one sees all that the others did before they left.
    pub(crate) fn leave(&self) -> GuardsLeft {
        let before = self.0.fetch_sub(1, Ordering::AcqRel);
        if before & COUNT != 1 {
            GuardsLeft::Others
        } else {
            GuardsLeft::None { sealed: before & SEALED != 0 }
        }
    }
}
