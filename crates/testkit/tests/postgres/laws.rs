//! Tests of the laws of the protocol. Each fails without its law.

mod busy_names;
mod limits;
mod locks;
mod messages;

use lockkeeper_core::store::Verdict;

fn is_granted(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Granted(_))
}
