//! `evict`: evicts the holders of a name, after asking.

use std::io::{BufRead, IsTerminal, Write};

use lockkeeper::{
    Keeper,
    store::{Eviction, HolderView},
    support::duration,
};

use crate::{
    args::EvictArgs,
    exit::Failure,
    text::{self, plain},
    view,
};

/// Runs `lockkeeper evict`.
pub(crate) async fn evict(keeper: &Keeper, args: &EvictArgs) -> Result<u8, Failure> {
    let found = keeper.inspect(&args.name).await?;
    let mut holders = found.map(|view| view.holders).unwrap_or_default();
    if let Some(token) = args.token {
        // A hand-on inside a process has a later step of the same grant.
        holders.retain(|holder| holder.token.number() == token.number());
    }
    let name = plain(&args.name);
    if holders.is_empty() {
        let who =
            args.token.map_or_else(|| "nobody".to_owned(), |token| format!("no holder with token {token}"));
        return text::print(&format!("{who} holds {name}; nothing to evict\n")).map(|()| 0);
    }
    if !args.yes && !confirmed(&name, &holders, args.now)? {
        return text::print("nothing evicted\n").map(|()| 0);
    }
    let how = if args.now { Eviction::Immediate } else { Eviction::Graceful };
    let mut lines = String::new();
    for holder in holders {
        let done =
            keeper.evict_because(&args.name, holder.contender, holder.token, how, &args.reason).await?;
        let what = match (done, args.now) {
            (true, true) => "evicted at once",
            (true, false) => "evicted; it passes when the holder leaves or its lease ends",
            (false, _) => "had left before",
        };
        lines += &format!("{name}: {} {what}; reason: {}\n", describe(&holder), plain(&args.reason));
    }
    text::print(&lines).map(|()| 0)
}

fn describe(holder: &HolderView) -> String {
    format!("{} token {}", view::process(&holder.details), holder.token)
}

/// Shows the holders and asks.
fn confirmed(name: &str, holders: &[HolderView], now: bool) -> Result<bool, Failure> {
    if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        return Err(Failure::usage(format!(
            "{name} is held, and without a terminal nobody can confirm; add --yes"
        )));
    }
    let mut question = format!("{name} is held by\n");
    for holder in holders {
        question += &format!("  {} for {}\n", describe(holder), duration::show(text::ago(holder.since)));
    }
    question += if now {
        "They may still work after that: safe only with fencing. Evict? [y/N] "
    } else {
        "Evict? [y/N] "
    };
    let failed = |error: std::io::Error| Failure::internal("cannot ask", error);
    let mut err = std::io::stderr().lock();
    err.write_all(question.as_bytes()).and_then(|()| err.flush()).map_err(failed)?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer).map_err(failed)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
