//! The part of a store beyond the contract that a member of a quorum needs.
//!
//! A member keeps a record for the quorum that it belongs to: a text that it does not understand. It tells the record
//! with every answer, together with its incarnation, which is another one after every start that may have lost data or
//! freed holds. So a loss of data cannot go unnoticed between an answer and the judgement whether the member votes.

use std::sync::Arc;

use super::{Answer, Answers, Renew, Renewed, Reply, Request};
use crate::token::GrantNumber;

/// The record that a member keeps for its quorum, and the incarnation of the member that tells it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Membership {
    /// The record. `None`: the member belongs to no quorum, or it has lost its data.
    pub record: Option<Arc<str>>,
    /// Differs after every start that may have lost data or freed holds.
    pub incarnation: Arc<str>,
}

/// Answers of a member, and its membership not earlier than these.
#[derive(Clone, Debug)]
pub struct MemberAnswers<T> {
    /// The membership, read in the same atomic step as the answers or later.
    pub membership: Membership,
    /// The answers of [`Store::apply`](super::Store::apply) or [`Store::renew`](super::Store::renew).
    pub answers: Answers<T>,
}

/// A member's account of itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemberState {
    /// The record that it keeps for its quorum, and its incarnation.
    pub membership: Membership,
    /// Its wall clock, in microseconds since 1970.
    pub wall: u64,
    /// The highest grant number of all its resources so far.
    pub high_water: GrantNumber,
    /// Which server it is: the same for all connections that lead to one server at a time, whatever URL, namespace or
    /// schema they have, and differs between servers. Unlike the [id](super::Store::id), it may change when the server
    /// starts again.
    pub server: Arc<str>,
}

/// A change of a member's record. It is made only if the membership is still the expected one, and no grant has a number
/// above `high_water` yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Enrolment {
    /// The membership as it was read.
    pub expected: Membership,
    /// The record to keep.
    pub record: Arc<str>,
    /// All later grants of the member have numbers above this.
    pub high_water: GrantNumber,
}

/// The side of a store that makes it a member of a quorum.
///
/// The membership that comes with answers must be read over the connection that brought them, or in the same step. A
/// later moment is as good as the same step: a member that lost its data in between does not get the same record in the
/// same incarnation again.
pub trait Member: Send + Sync {
    /// As [`Store::apply`](super::Store::apply).
    fn apply<'a>(&'a self, group: &'a [Request]) -> Reply<'a, MemberAnswers<Answer>>;

    /// As [`Store::renew`](super::Store::renew).
    fn renew<'a>(&'a self, leases: &'a [Renew]) -> Reply<'a, MemberAnswers<Renewed>>;

    /// Returns the member's account of itself.
    fn state(&self) -> Reply<'_, MemberState>;

    /// Changes the record. False: nothing was changed, because something was not as expected.
    fn enrol<'a>(&'a self, enrolment: &'a Enrolment) -> Reply<'a, bool>;
}
