//! A store made of three, five or seven independent servers, of which a majority decides.
//!
//! **Incomplete**: this crate has the protocol and the model that checks it. The store that runs the protocol over real
//! members, and its URL, are not there yet.
//!
//! [`Attempt`] is the protocol from the view of one contender: a pure state machine without I/O and without a clock of its
//! own. Members' answers go in; requests to members and, in the end, a hold come out. The rules are in `docs/design.md`,
//! chapter "Quorum". The model checker in this crate's tests runs this very code against members that are the real
//! [model](lockkeeper_core::model).

mod attempt;
mod majority;

pub use attempt::{Ask, Attempt, Ended, Hold, Request, Said, Sharing, Stamp};
pub use majority::Majority;

#[cfg(test)]
mod check;
