//! `latch`: a countdown that many wait for.

use lockkeeper::Keeper;

use crate::{
    args::{LatchAction, LatchArgs},
    exit::Failure,
    signals::Signals,
    text,
};

/// Runs `lockkeeper latch`.
pub(crate) async fn latch(keeper: &Keeper, args: &LatchArgs) -> Result<u8, Failure> {
    let mut signals = Signals::listen()?;
    let latch = keeper.latch(&args.name);
    let work = async {
        match args.action {
            LatchAction::Create { count } => latch.create(count).await?,
            LatchAction::Down { count } => {
                let left = latch.count_down_by(count).await?;
                text::print(&format!("{left}\n"))?;
            }
            LatchAction::Wait { wait: Some(limit) } => latch.wait_within(limit).await?,
            LatchAction::Wait { wait: None } => latch.wait().await?,
            LatchAction::Show => match latch.state().await? {
                Some(state) => text::print(&format!("{} of {}\n", state.remaining, state.initial))?,
                None => {
                    let message = format!("there is no latch {:?}; create it first", args.name);
                    return Err(Failure::usage(message));
                }
            },
            LatchAction::Reset => latch.reset().await?,
            LatchAction::Delete => latch.delete().await?,
        }
        Ok(0)
    };
    tokio::select! {
        biased;
        signal = signals.next() => Err(Failure::interrupted(signal)),
        done = work => done,
    }
}
