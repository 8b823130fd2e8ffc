//! What a token may see.

use crate::{alarms::Alarm, pattern::Pattern};

/// What a token may see: names that begin with one of its prefixes, or everything if it has none.
#[derive(Clone, Copy, Debug)]
pub struct Scope<'a> {
    prefixes: &'a [String],
}

impl<'a> Scope<'a> {
    /// Everything.
    pub const fn all() -> Self {
        Self { prefixes: &[] }
    }

    /// Names that begin with one of these; everything if there are none.
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
