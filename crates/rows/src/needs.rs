//! The names to lock and the tombstones to look up for a group.

use std::collections::BTreeMap;

use lockkeeper_core::{
    ContenderId, Name,
    store::{Renew, Request},
};

/// The rows that a store has to lock and to look up before it can do a group.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Needs {
    /// The names to lock, each once, in byte order: stores that lock in this order never wait for each other in a circle.
    pub names: Vec<NeededName>,
    /// The contenders whose tombstones decide claims, in the order of the group.
    pub contenders: Vec<ContenderId>,
}

/// A name that a group is about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NeededName {
    /// The name.
    pub name: Name,
    /// Whether it needs a row that can be locked, even if nobody holds it or waits for it yet. The others may go without:
    /// there is nothing to leave, to renew or to evict.
    pub must_exist: bool,
}

impl Needs {
    /// Returns the needs of a group of claims and leaves. A leave with a tombstone needs the row as a claim does: else
    /// a late copy of its claim could pass it, because nothing would order the two.
    pub fn of(group: &[Request]) -> Self {
        let must_exist = |request: &Request| match request {
            Request::Claim(_) => true,
            Request::Leave(leave) => leave.tombstone_until.is_some(),
        };
        let contenders = group.iter().filter_map(|request| match request {
            Request::Claim(claim) => Some(claim.contender),
            Request::Leave(_) => None,
        });
        let names = group.iter().map(|request| (request.name(), must_exist(request)));
        Self { names: in_order(names), contenders: contenders.collect() }
    }

    /// Returns the needs of renewals, which look up no tombstones.
    pub fn of_renewals(leases: &[Renew]) -> Self {
        let names = leases.iter().map(|renew| (&renew.name, false));
        Self { names: in_order(names), contenders: Vec::new() }
    }
}

fn in_order<'a>(names: impl Iterator<Item = (&'a Name, bool)>) -> Vec<NeededName> {
    let mut needed = BTreeMap::<&Name, bool>::new();
    for (name, must_exist) in names {
        *needed.entry(name).or_default() |= must_exist;
    }
    needed.into_iter().map(|(name, must_exist)| NeededName { name: name.clone(), must_exist }).collect()
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::store::{Leave, StoreTime};

    use super::*;
    use crate::samples::{claims, contender, leave, leaves, name};

    #[test]
    fn a_group_needs_each_name_once_in_byte_order() {
        let tombstone = Leave { tombstone_until: Some(StoreTime(9)), ..leave("d", 5) };
        let group = [
            claims("b", 1),
            leaves("c", 2),
            claims("a", 3),
            leaves("b", 4),
            Request::Leave(tombstone),
            claims("B", 6),
        ];
        let needs = Needs::of(&group);
        let expected = [("B", true), ("a", true), ("b", true), ("c", false), ("d", true)];
        let names = expected.map(|(text, must_exist)| NeededName { name: name(text), must_exist });
        assert_eq!(needs.names, names);
        assert_eq!(needs.contenders, [1, 3, 6].map(contender));
    }
}
