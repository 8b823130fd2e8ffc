//! `elect --observe`: one line of JSON now and at each change of the leader.

use lockkeeper::{Keeper, lock::Leader};
use serde_json::{Value, json};

use crate::{args::ElectArgs, exit::Failure, signals::Signals, text};

/// Runs `lockkeeper elect --observe`, until a signal or the end of its reader.
pub(crate) async fn observe(keeper: &Keeper, args: &ElectArgs) -> Result<u8, Failure> {
    let mut signals = Signals::listen()?;
    let mut changes = keeper.election(&args.name).observe();
    let mut first = true;
    let reader_gone = text::reader_gone();
    tokio::pin!(reader_gone);
    loop {
        let change = tokio::select! {
            biased;
            signal = signals.next() => {
                return Err(Failure::interrupted(signal));
            }
            () = &mut reader_gone => return Ok(0),
            change = changes.next() => change,
        };
        match change {
            Some(Ok(leader)) => text::print(&format!("{}\n", text::json(&line(&args.name, leader))))?,
            // Observation goes on by itself when the store is back; only a failure at the start ends it.
            Some(Err(error)) if first || !error.is_passing() => return Err(error.into()),
            Some(Err(error)) => text::say(&format!("{error}; trying again")),
            None => return Ok(0),
        }
        first = false;
    }
}

fn line(name: &str, leader: Option<Leader>) -> Value {
    let leader = leader.map(|leader| {
        json!({
            "value": leader.value,
            "token": leader.token.to_string(),
            "host": leader.process.host,
            "pid": leader.process.pid,
            "program": leader.process.program,
            "since": text::moment(leader.since),
        })
    });
    json!({ "name": name, "leader": leader })
}
