//! Renewals that the watchdog asks for, or the owner of a hold that it extends, lowers, detaches or adopts.
//!
//! An answer that is missing means *unknown*: the hold is as it was, and the store is asked again.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use super::{
    Alive, Engine,
    hold::{Due, Grantee, Hold},
    hold_step::HoldStep,
    outages::{FailedRequest, Work},
    release::{self, OwnedHold, Unwanted},
    store_client::StoreClient,
};
use crate::{
    clock::BootTime,
    error::{At, LeaseError, Lost, StoreError, StoreErrorKind},
    share::Units,
    store::{Grant, Renew, Renewed},
    token::{GrantNumber, Token},
};

/// Renewals due within this time of one that is due go out with it.
pub(super) const TOGETHER: Duration = Duration::from_millis(50);

/// The wish of a hold's owner besides the renewal.
pub(crate) enum Change {
    /// A lease of this length.
    Extend(Duration),
    /// Fewer units.
    Lower(Units),
    /// A life without its process.
    Detach,
}

/// A lease of another process.
pub(crate) struct DetachedLease {
    pub(crate) grantee: Grantee,
    pub(crate) token: Token,
    pub(crate) floor: GrantNumber,
}

/// The answers to renewals that were sent together.
struct RenewalAnswers {
    received: BootTime,
    each: Vec<Renewed>,
}

/// Sends renewals as one request. There is one answer for each.
async fn send(
    client: &StoreClient,
    operation: &'static str,
    renewals: &[Renew],
) -> Result<RenewalAnswers, StoreError> {
    let server = renewals.first().map_or(0, |first| client.server_of(&first.name));
    let sent = client.clock.now();
    let answers = client.ask(operation, client.store.renew(renewals)).await;
    if let Some(renewal) = renewals.first() {
        client.outages.heard(&renewal.name, sent, &answers);
    }
    let (answers, received) = (answers?, client.clock.now());
    client.store_clock.heard(server, received, answers.now);
    let mut each = answers.each;
    each.resize(renewals.len(), Renewed::Unknown);
    Ok(RenewalAnswers { received, each })
}

/// A renewal that only extends.
fn plain(hold: &Hold, lease: Duration) -> Renew {
    let (name, contender) = (hold.name.clone(), hold.contender);
    Renew { name, contender, lease, lower_to: None, detach: false, at_least: 0 }
}

/// Renews the holds that are due.
pub(super) fn renew_due(engine: &Arc<Engine>, holds: Vec<Arc<Hold>>, now: BootTime) {
    let mut by_server = BTreeMap::<usize, Vec<(Arc<Hold>, Duration)>>::new();
    for hold in holds {
        match hold.plan(now, TOGETHER) {
            Due::Over => engine.registry.lost(hold.slot),
            Due::Later => engine.registry.look_again(&hold),
            Due::Renew(lease) => {
                engine.registry.look_again(&hold);
                by_server.entry(engine.client.server_of(&hold.name)).or_default().push((hold, lease));
            }
        }
    }
    for renewals in by_server.into_values() {
        let mut renewals = renewals.into_iter().peekable();
        while renewals.peek().is_some() {
            let group = renewals.by_ref().take(engine.client.group_limit()).collect();
            engine.client.background.spawn(renew_group(engine.clone(), group));
        }
    }
}

async fn renew_group(engine: Arc<Engine>, mut group: Vec<(Arc<Hold>, Duration)>) {
    let sent = engine.clock().now();
    group.retain(|(hold, lease)| hold.asks_for(sent, *lease));
    let Some((first, _)) = group.first() else { return };
    let (outages, request) = (&engine.client.outages, FailedRequest { name: &first.name, sent });
    let renewals: Vec<Renew> = group.iter().map(|(hold, lease)| plain(hold, *lease)).collect();
    match send(&engine.client, "renew", &renewals).await {
        Ok(answers) => {
            match answers.each.iter().filter(|answer| **answer == Renewed::Unknown).count() {
                0 => outages.answered(&first.name, Work::Renewals),
                leases => outages.renewals_failed(request, leases, &unknown()),
            }
            for ((hold, _), answer) in group.iter().zip(answers.each) {
                settle(&engine, hold, sent, answer, answers.received);
            }
        }
        Err(error) => {
            outages.renewals_failed(request, group.len(), &error);
            let now = engine.clock().now();
            for (hold, _) in &group {
                hold.unanswered(sent, now, error.clone());
                settled(&engine, hold);
            }
        }
    }
}

/// Takes in the answer to a renewal that was sent at `sent`.
fn settle(engine: &Arc<Engine>, hold: &Hold, sent: BootTime, answer: Renewed, now: BootTime) {
    if !matches!(answer, Renewed::Unknown) {
        // Before it can be seen that it is lost.
        hold.was_heard();
    }
    match answer {
        // A late copy of its claim was granted anew, so this grant must be over (rule 3 of the design).
        Renewed::Held(grant) if grant.number != hold.number => {
            hold.lose(Lost::Gone);
            let (name, contender, lease) = (&hold.name, hold.contender, hold.terms.claim_lease());
            release::unwanted(
                engine,
                &Unwanted { name, contender, number: grant.number, lease, granted: sent },
            );
        }
        Renewed::Held(Grant { remaining, .. }) => {
            // What `max_hold` leaves says nothing about the renewal.
            engine.client.outages.renewed(&hold.name, hold.deadline().since(now), hold.running());
            hold.answered(sent, remaining, now);
        }
        Renewed::Gone => hold.lose(Lost::Gone),
        Renewed::Evicted(reason) => hold.lose_because(Lost::Evicted, reason),
        Renewed::Unknown => hold.unanswered(sent, now, unknown()),
    }
    settled(engine, hold);
}

/// The watchdog is to look at the hold again, unless it is lost.
fn settled(engine: &Engine, hold: &Hold) {
    if hold.lost().is_some() {
        engine.registry.lost(hold.slot);
    } else {
        engine.registry.look_again(hold);
    }
}

/// Renews one hold and changes it.
pub(crate) async fn change(
    step: &HoldStep,
    change: Change,
    operation: &'static str,
) -> Result<(), LeaseError> {
    let not_held = |why| LeaseError::NotHeld { at: step.at(operation), why };
    step.check().map_err(not_held)?;
    let (engine, hold) = (step.alive.engine(), &step.hold);
    let sent = engine.clock().now();
    let renewal = plain(hold, hold.lease_to_ask_for(sent));
    let renewal = match change {
        Change::Extend(lease) => Renew { lease, ..renewal },
        Change::Lower(units) => Renew { lower_to: Some(units), ..renewal },
        // The whole lease, even if less is left of `max_hold`: it is the time that another process has to adopt it.
        Change::Detach => {
            hold.stay();
            Renew { detach: true, lease: hold.terms.lease_to_ask_for(Duration::MAX), ..renewal }
        }
    };
    if !hold.asks_for(sent, renewal.lease) {
        return Err(not_held(hold.lost().unwrap_or(Lost::Released)));
    }
    let answers = send(&engine.client, operation, &[renewal]).await;
    let answers = answers.map_err(|error| {
        let error = error.at(step.at(operation));
        hold.renewal_failed(sent, error.clone());
        error
    })?;
    let answer = answers.each.into_iter().next().unwrap_or(Renewed::Unknown);
    let is_unknown = answer == Renewed::Unknown;
    settle(engine, hold, sent, answer, answers.received);
    if is_unknown {
        return Err(unknown().at(step.at(operation)).into());
    }
    step.check().map(|_| ()).map_err(not_held)
}

/// Goes on with a lease of another process.
pub(crate) async fn adopt(alive: &Arc<Alive>, lease: DetachedLease) -> Result<OwnedHold, LeaseError> {
    let engine = alive.engine();
    let DetachedRenewal { sent, remaining } = renew_detached(engine, &lease, "adopt").await?;
    let at = At::resource(engine.store().url(), &lease.grantee.name, "adopt");
    let hold = Arc::new(Hold::adopted(lease.grantee, lease.token, lease.floor, sent, remaining));
    if !engine.registry.adopt(&hold) {
        return Err(LeaseError::NotHeld { at, why: Lost::Closed });
    }
    Ok(OwnedHold::new(alive, hold, lease.token.step()))
}

/// A renewal of a detached lease that was answered.
pub(crate) struct DetachedRenewal {
    pub(crate) sent: BootTime,
    /// The rest of the lease at the moment of the answer.
    pub(crate) remaining: Duration,
}

/// Renews a lease of another process once, and leaves it detached.
pub(crate) async fn renew_detached(
    engine: &Arc<Engine>,
    lease: &DetachedLease,
    operation: &'static str,
) -> Result<DetachedRenewal, LeaseError> {
    let Grantee { name, contender, terms, .. } = &lease.grantee;
    let at = || At::resource(engine.store().url(), name, operation);
    let renewal = Renew {
        name: name.clone(),
        contender: *contender,
        lease: terms.lease_to_ask_for(Duration::MAX),
        lower_to: None,
        detach: true,
        // It has at least this number. A store that does not keep the number in one place learns it by this.
        at_least: lease.token.number(),
    };
    let sent = engine.clock().now();
    let answers = send(&engine.client, operation, &[renewal]).await.map_err(|error| error.at(at()))?;
    let not_held = |why| Err(LeaseError::NotHeld { at: at(), why });
    match answers.each.into_iter().next().unwrap_or(Renewed::Unknown) {
        Renewed::Held(grant) if grant.number == lease.token.number() => {
            Ok(DetachedRenewal { sent, remaining: grant.remaining })
        }
        Renewed::Evicted(_) => not_held(Lost::Evicted),
        Renewed::Held(_) => {
            // A late copy of its claim was granted anew, and nobody has that grant (rule 3 of the design).
            release::never_taken_detached(engine, &lease.grantee);
            not_held(Lost::Gone)
        }
        Renewed::Gone => not_held(Lost::Gone),
        Renewed::Unknown => Err(unknown().at(at()).into()),
    }
}

/// The one lease that was to be renewed is not known to be.
fn unknown() -> StoreError {
    StoreError::new(
        StoreErrorKind::Unreachable,
        "the store did not confirm the renewal; check the store and its replicas",
    )
}
