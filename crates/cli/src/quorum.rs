//! `quorum`: looks at the members of a quorum, has them vote, and replaces one.

use lockkeeper::{
    quorum::{self, MemberReport},
    support::duration,
};
use serde_json::{Value, json};

use crate::{
    args::{QuorumAction, QuorumArgs, StoreArgs},
    exit::Failure,
    store, text,
};

/// `show`: a member does not vote.
const WARNINGS: u8 = 1;

/// Runs `lockkeeper quorum`.
pub(crate) async fn quorum(args: &StoreArgs, quorum: &QuorumArgs) -> Result<u8, Failure> {
    let url = store::url(args)?;
    if !url.starts_with("quorum:") {
        return Err(Failure::usage("this store is no quorum; name one by --store quorum:URL,URL,URL"));
    }
    match &quorum.action {
        QuorumAction::Found { fresh: true } => {
            quorum::found_fresh(&url).await?;
            text::say("the quorum is founded, and all its members vote");
        }
        QuorumAction::Found { fresh: false } => {
            quorum::found(&url, text::say).await?;
            text::say("all members vote");
        }
        QuorumAction::Rejoin => {
            quorum::rejoin(&url, text::say).await?;
            text::say("all members vote that can be reached");
        }
        QuorumAction::Replace { old, new } => {
            quorum::replace(&url, old, new, text::say).await?;
            text::say(
                "the new server votes; name it in the URL of every client, in the place of the old one",
            );
        }
        QuorumAction::Show { json } => return show(&url, *json).await,
    }
    Ok(0)
}

async fn show(url: &str, as_json: bool) -> Result<u8, Failure> {
    let members = quorum::show(url).await?;
    let text = match as_json {
        true => format!("{}\n", text::json(&Value::from_iter(members.iter().map(object)))),
        false => text::table(&members.iter().map(row).collect::<Vec<_>>()),
    };
    text::print(&text)?;
    Ok(if members.iter().all(|member| member.votes) { 0 } else { WARNINGS })
}

/// Returns a clock's offset in milliseconds.
#[expect(clippy::cast_precision_loss, reason = "a clock that is off by centuries needs no microseconds")]
fn milliseconds(micros: i64) -> f64 {
    micros as f64 / 1000.0
}

fn object(member: &MemberReport) -> Value {
    json!({
        "member": member.number,
        "url": member.url,
        "answers": member.answers,
        "votes": member.votes,
        "votes_in_ms": member.votes_in.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
        "trouble": member.trouble,
        "clock_offset_ms": member.clock_offset.map(milliseconds),
    })
}

fn row(member: &MemberReport) -> Vec<String> {
    let vote = match (member.answers, member.votes, member.votes_in) {
        (false, _, _) => "does not answer".to_owned(),
        (true, true, _) => "votes".to_owned(),
        (true, false, Some(time)) => {
            format!("does not vote for {} more while a client watches it", duration::show(time))
        }
        (true, false, None) => "does not vote".to_owned(),
    };
    let clock = member.clock_offset.map(|micros| format!("clock {:+.1} ms", milliseconds(micros)));
    let number = format!("member {}", member.number);
    let trouble = member.trouble.as_deref().map(text::plain).unwrap_or_default();
    vec![number, text::plain(&member.url), vote, clock.unwrap_or_default(), trouble]
}
