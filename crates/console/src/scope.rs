//! The names that a token may see.

use crate::{alarms::Alarm, pattern::Pattern};

/// The names that a token may see: those that begin with one of its prefixes, or all if it has none.
#[derive(Clone, Copy, Debug)]
pub struct Scope<'a> {
    prefixes: &'a [String],
}

impl<'a> Scope<'a> {
    /// Returns the scope of all names.
    pub const fn all() -> Self {
        Self { prefixes: &[] }
    }

    /// Returns the scope of the names that begin with one of these; of all names if there are none.
    pub const fn of(prefixes: &'a [String]) -> Self {
        Self { prefixes }
    }

    pub(crate) fn is_all(&self) -> bool {
        self.prefixes.is_empty()
    }

    pub(crate) fn may_see(&self, name: &str) -> bool {
        self.is_all() || self.prefixes.iter().any(|prefix| name.starts_with(prefix))
    }

    /// Whether a pattern may match a name that may be seen.
    pub(crate) fn may_see_pattern(&self, pattern: &Pattern) -> bool {
        self.is_all() || self.prefixes.iter().any(|prefix| pattern.may_begin_with(prefix))
    }

    pub(crate) fn may_see_alarm(&self, alarm: &Alarm) -> bool {
        alarm.name.as_deref().is_none_or(|name| self.may_see(name))
    }
}
