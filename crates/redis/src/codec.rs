//! Turns requests into arguments of the scripts, and replies, rows and messages back into values. Nothing here is sent.

mod arguments;
mod details;
mod rarities;
mod replies;
mod rows;

pub(crate) use self::{
    arguments::{claims_and_leaves, end, is_plain_leave, push_group, push_renewals},
    rarities::reason_argument,
    replies::Reader,
    rows::notice,
};
