//! Leases that are acquired for somebody else: born detached, so that they belong to no process.

use std::{sync::Arc, time::Duration};

use super::{handle::Handle, lease::Lease};
use crate::{
    engine::{
        Alive,
        patience::Patience,
        release,
        terms::{DEFAULT_LEASE, Terms},
    },
    error::AcquireError,
    share::{Capacity, Units},
    store::{Attachment, Kind, ProcessInfo},
};

/// The claim of [`Keeper::acquire_lease`](crate::Keeper::acquire_lease).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkeeper::Error> {
/// use lockkeeper::{lock::LeaseClaim, store::{Capacity, Kind, ProcessInfo, Units}};
/// # let keeper = lockkeeper::testing::keeper().await;
///
/// let mut claim = LeaseClaim::new(Kind::Mutex, Units::All, Capacity::All);
/// claim.process = Some(ProcessInfo { host: "web-1".into(), pid: 0, program: "curl".into() });
/// let acquired = keeper.acquire_lease("deploy", &claim, None).await?.expect("it waits");
/// keeper.release_lease(&acquired.lease).await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LeaseClaim {
    /// The primitive, for people and for the process that adopts the lease.
    pub kind: Kind,
    /// The units that are asked for.
    pub units: Units,
    /// The number of units that the resource has.
    pub capacity: Capacity,
    /// The length of the lease, and of each renewal of it.
    pub lease: Duration,
    /// It is kept until it is this old, even if it is released before.
    pub min_hold: Duration,
    /// The process that is shown as the holder, if it is not this one.
    pub process: Option<ProcessInfo>,
    /// Words for people.
    pub label: Option<String>,
    /// A published value, of an election.
    pub value: Option<String>,
}

/// A lease that was acquired.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AcquiredLease {
    /// The lease.
    pub lease: Lease,
    /// How long it is certainly held from the moment at which this was returned.
    pub remaining: Duration,
}

impl LeaseClaim {
    /// A claim with a lease of 30 s and nothing else.
    pub fn new(kind: Kind, units: Units, capacity: Capacity) -> Self {
        let (lease, min_hold) = (DEFAULT_LEASE, Duration::ZERO);
        Self { kind, units, capacity, lease, min_hold, process: None, label: None, value: None }
    }

    fn terms(&self) -> Terms {
        let mut terms = Terms::new(self.kind, self.units, self.capacity);
        terms.lease = self.lease;
        terms.min_hold = self.min_hold;
        terms.attachment = Attachment::Detached;
        // Every caller has a position of its own: a hold that belongs to no process is not handed on inside of this
        // one.
        terms.fifo = true;
        let shown = terms.show();
        shown.label = self.label.as_deref().map(Into::into);
        shown.value = self.value.as_deref().map(Into::into);
        shown.process = self.process.clone().map(Arc::new);
        terms
    }

    pub(crate) async fn acquire(
        &self,
        alive: &Arc<Alive>,
        name: &str,
        limit: Option<Duration>,
    ) -> Result<Option<AcquiredLease>, AcquireError> {
        let handle = Handle::new(alive, name, self.terms());
        let clock = alive.engine().clock();
        let patience = match limit {
            None => Patience::Forever,
            Some(Duration::ZERO) => Patience::Try,
            Some(limit) => Patience::within(clock, limit),
        };
        let Some(owned) = handle.acquire(handle.terms(), patience, "acquire").await? else { return Ok(None) };
        // From here to the end there is no await, at which the future could be dropped and the lease lost.
        let ends = owned.check();
        // After the check: if the process stops in between, less is left.
        let now = clock.now();
        let lease = Lease::of(owned.hold(), self.units, owned.step(), now);
        let remaining = ends.map_or(Duration::ZERO, |ends| ends.since(now));
        release::detach(&owned)
            .map_err(|_closed| AcquireError::Closed { at: owned.at("acquire"), maybe_applied: true })?;
        Ok(Some(AcquiredLease { lease, remaining }))
    }
}
