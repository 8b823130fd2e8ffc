//! `acquire`, `renew` and `release`: a lock that is held over several commands.

use std::io::Read;

use lockkeeper::{
    Keeper, Lease,
    error::{At, LeaseError},
};
use serde_json::json;

use crate::{
    acquisition::{Acquisition, Lifetime, LockKind},
    args::{AcquireArgs, ReleaseArgs, RenewArgs},
    exit::Failure,
    signals::Signals,
    store::Connected,
    text,
};

/// Runs `lockkeeper acquire`.
pub(crate) async fn acquire(connected: &Connected, args: &AcquireArgs) -> Result<u8, Failure> {
    if args.wait.skip_ok {
        let message =
            "--skip-ok would exit with 0 and print no lease; use it with `run`, or handle exit code 75";
        return Err(Failure::usage(message));
    }
    let mut signals = Signals::listen()?;
    let kind = LockKind::of(&args.share);
    let lifetime = Lifetime::Detached;
    let acquisition =
        Acquisition { connected, name: &args.name, kind, lifetime, wait: &args.wait, runs: None };
    let held = acquisition.acquire(&mut signals).await?;
    // Read before `into_lease`, which renews once more: the lease lasts at least this long.
    let (token, remaining) = (held.token(), held.remaining());
    let lease = held.into_lease().await?;
    let line = if args.json {
        text::json(&json!({
            "name": args.name,
            "token": token.to_string(),
            "lease": lease.to_string(),
            "expires_in_ms": u64::try_from(remaining.as_millis()).unwrap_or(u64::MAX),
        }))
    } else {
        lease.to_string()
    };
    let printed = text::print(&format!("{line}\n"));
    if printed.is_err() {
        // Nobody has the lease, so nobody could release it.
        connected.keeper.release_lease(&lease).await?;
    }
    printed.map(|()| 0)
}

/// Runs `lockkeeper renew`.
pub(crate) async fn renew(keeper: &Keeper, args: &RenewArgs) -> Result<u8, Failure> {
    let lease = given(&args.lease)?;
    // Adopting renews it for as long as it was taken for.
    let adopted = keeper.adopt(&lease).await.map_err(|error| match error {
        LeaseError::NotHeld { at, why } => LeaseError::NotHeld { at: At { operation: "renew", ..at }, why },
        error => error,
    })?;
    let extended = match args.length {
        Some(length) => adopted.extend(length).await,
        None => Ok(()),
    };
    // Detached again before any error is returned: a guard that is dropped would release the lock that the caller
    // counts on.
    adopted.into_lease().await.map_err(LeaseError::from)?;
    Ok(extended.map(|()| 0)?)
}

/// Runs `lockkeeper release`.
pub(crate) async fn release(keeper: &Keeper, args: &ReleaseArgs) -> Result<u8, Failure> {
    let lease = given(&args.lease)?;
    keeper.release_lease(&lease).await?;
    Ok(0)
}

/// Returns the lease as it was given, or from stdin.
fn given(lease: &str) -> Result<Lease, Failure> {
    let mut text = String::new();
    if lease == "-" {
        std::io::stdin().read_to_string(&mut text).map_err(|error| {
            Failure::usage(format!("cannot read the lease from stdin: {error}; pipe it in"))
        })?;
    } else {
        text.push_str(lease);
    }
    text.parse().map_err(|_| {
        Failure::usage("this is not a lease; pass on the whole line that `lockkeeper acquire` printed")
    })
}
