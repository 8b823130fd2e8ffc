//! The arithmetic of majorities, and nothing else.

use lockkeeper_core::InvalidInput;

/// The most members that a quorum has.
const MOST: usize = 7;

/// The number of members. Any two majorities share a member.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Majority {
    members: usize,
}

impl Majority {
    /// The majority of so many members: 3, 5 or 7.
    pub fn of(members: usize) -> Result<Self, InvalidInput> {
        match members {
            3 | 5 | 7 => Ok(Self { members }),
            1 => Err(InvalidInput::new("a quorum of one server is that server; use its URL alone")),
            2 | 4 | 6 => Err(InvalidInput::new(format!(
                "{members} members survive no more failures than {}; use 3, 5 or 7",
                members - 1
            ))),
            _ => Err(InvalidInput::new(format!("a quorum has 3, 5 or 7 members, not {members}"))),
        }
    }

    /// How many members there are.
    pub fn members(self) -> usize {
        self.members
    }

    /// How many members decide.
    pub fn needed(self) -> usize {
        self.members / 2 + 1
    }

    /// The smallest value that a majority does not exceed: the needed-th smallest, if there are so many.
    pub(crate) fn smallest<T: Ord + Copy>(self, values: impl IntoIterator<Item = T>) -> Option<T> {
        let mut room = [None; MOST];
        sorted(&mut room, values).get(self.needed() - 1).copied().flatten()
    }

    /// The same if some values are not known: the smallest value that a majority may not exceed, since those may be
    /// small.
    pub(crate) fn smallest_possible<T: Ord>(self, values: impl IntoIterator<Item = T>) -> Option<T> {
        let mut values: Vec<T> = values.into_iter().collect();
        values.sort_unstable();
        let unknown = self.members.saturating_sub(values.len());
        values.into_iter().nth((self.needed() - 1).saturating_sub(unknown))
    }

    /// The largest value that a majority reaches: the needed-th largest, if there are so many.
    pub(crate) fn largest<T: Ord + Copy>(self, values: impl IntoIterator<Item = T>) -> Option<T> {
        let mut room = [None; MOST];
        let sorted = sorted(&mut room, values);
        sorted.iter().rev().nth(self.needed() - 1).copied().flatten()
    }
}

/// The values in order, without the room that they do not need. There is at most one for each member.
fn sorted<T: Ord + Copy>(room: &mut [Option<T>; MOST], values: impl IntoIterator<Item = T>) -> &[Option<T>] {
    let mut count = 0;
    for (value, slot) in values.into_iter().zip(&mut *room) {
        *slot = Some(value);
        count += 1;
    }
    room[..count].sort_unstable();
    &room[..count]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_numbers_from_three_to_seven() {
        for (members, needed) in [(3, 2), (5, 3), (7, 4)] {
            assert_eq!(Majority::of(members).expect("odd").needed(), needed);
        }
        for members in [0, 1, 2, 4, 6, 8, 9] {
            let error = Majority::of(members).expect_err("refused").to_string();
            assert!(error.contains(&members.to_string()) || members == 1, "{error}");
        }
    }

    #[test]
    fn what_a_majority_reaches() {
        let three = Majority::of(3).expect("odd");
        assert_eq!(
            (three.smallest([9, 5, 7]), three.smallest([9, 5]), three.smallest([9])),
            (Some(7), Some(9), None)
        );
        assert_eq!(
            (
                three.smallest_possible([9, 5, 7]),
                three.smallest_possible([9, 5]),
                three.smallest_possible([9])
            ),
            (Some(7), Some(5), Some(9))
        );
        assert_eq!(
            (three.largest([9, 5, 7]), three.largest([9, 5]), three.largest([9])),
            (Some(7), Some(5), None)
        );
    }
}
