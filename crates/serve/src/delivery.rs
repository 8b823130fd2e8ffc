//! Finds out whether a grant has reached its caller, and releases one that could not be sent.
//!
//! A grant travels with the body of its answer. When the connection takes the bytes of that body, it takes the grant
//! too. Once these bytes were flushed to the system, the grant counts as delivered. If the answer or the connection is
//! dropped before that, the grant is dropped with it, which releases the lease.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use lockkeeper::{Keeper, Lease, support};

use crate::{log::Log, outstanding::Outstanding};

/// A lease that its caller may not have heard of.
pub(crate) struct Undelivered {
    lease: Option<Lease>,
    keeper: Keeper,
    log: Log,
    work: Outstanding,
}

impl Undelivered {
    pub(crate) fn new(lease: Lease, keeper: &Keeper, log: &Log, work: &Outstanding) -> Self {
        Self { lease: Some(lease), keeper: keeper.clone(), log: log.clone(), work: work.clone() }
    }

    /// Takes note that the caller has it: it is no longer released.
    fn delivered(mut self) {
        self.lease = None;
    }
}

impl Drop for Undelivered {
    fn drop(&mut self) {
        let Some(lease) = self.lease.take() else { return };
        let (keeper, log) = (self.keeper.clone(), self.log.clone());
        self.work.spawn(async move {
            let result = keeper.call_off_lease(&lease).await;
            let fields = serde_json::json!({
                "name": lease.name().as_str(),
                "token": lease.token().to_string(),
                "outcome": result.map_or_else(|error| error.to_string(), |()| "released".to_owned()),
            });
            log.write("info", "undelivered", fields);
        });
    }
}

/// The grants that a connection has taken to send and not flushed yet.
#[derive(Default)]
pub(crate) struct Delivery {
    /// Whether there are any. It spares most flushes the lock.
    any: AtomicBool,
    /// Several if the caller sends requests without waiting for answers.
    taken: Mutex<Vec<Undelivered>>,
}

impl Delivery {
    fn take_over(&self, grant: Option<Undelivered>) {
        if let Some(grant) = grant {
            support::lock(&self.taken).push(grant);
            self.any.store(true, Ordering::Release);
        }
    }

    /// Takes note that all taken bytes are with the system, so their grants are delivered.
    pub(crate) fn flushed(&self) {
        if self.any.swap(false, Ordering::AcqRel) {
            let taken = std::mem::take(&mut *support::lock(&self.taken));
            taken.into_iter().for_each(Undelivered::delivered);
        }
    }
}

/// The body of an answer that brings a grant.
pub(crate) struct GrantBody {
    bytes: Option<Bytes>,
    grant: Option<Undelivered>,
    delivery: Arc<Delivery>,
}

impl GrantBody {
    pub(crate) fn new(bytes: Bytes, grant: Undelivered, delivery: Arc<Delivery>) -> Self {
        Self { bytes: Some(bytes), grant: Some(grant), delivery }
    }
}

impl Body for GrantBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let bytes = self.bytes.take();
        if bytes.is_some() {
            let grant = self.grant.take();
            self.delivery.take_over(grant);
        }
        Poll::Ready(bytes.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper::{
        lock::LeaseClaim,
        store::{Capacity, Kind, Units},
    };

    use super::*;

    async fn granted(keeper: &Keeper, delivery: &Arc<Delivery>, work: &Outstanding) -> GrantBody {
        granted_of("a", keeper, delivery, work).await
    }

    /// Acquires with a minimum hold. A release keeps it, but a grant that is called off does not.
    async fn granted_of(
        name: &str,
        keeper: &Keeper,
        delivery: &Arc<Delivery>,
        work: &Outstanding,
    ) -> GrantBody {
        let mut claim = LeaseClaim::new(Kind::Mutex, Units::All, Capacity::All);
        claim.min_hold = std::time::Duration::from_secs(3600);
        let acquired = keeper.acquire_lease(name, &claim, None).await.expect("asked").expect("free");
        let log = Log::start(Box::new(std::io::sink())).expect("a thread");
        let grant = Undelivered::new(acquired.lease, keeper, &log, work);
        GrantBody::new(Bytes::from_static(b"{}"), grant, delivery.clone())
    }

    async fn is_held(keeper: &Keeper, work: &Outstanding) -> bool {
        work.finished().await;
        keeper.inspect("a").await.expect("asked").is_some()
    }

    #[tokio::test]
    async fn a_grant_that_was_not_flushed_is_released() {
        let keeper = lockkeeper::connect("memory:").await.expect("a store in this process");
        let work = Outstanding::new();
        let mut context = Context::from_waker(std::task::Waker::noop());
        // The answer is dropped before anybody took it.
        let delivery = Arc::<Delivery>::default();
        drop(granted(&keeper, &delivery, &work).await);
        assert!(!is_held(&keeper, &work).await);
        // It was taken, and the connection ends before it is flushed. Earlier flushes do not count.
        let mut body = granted(&keeper, &delivery, &work).await;
        delivery.flushed();
        assert!(Pin::new(&mut body).poll_frame(&mut context).is_ready());
        drop(body);
        assert!(is_held(&keeper, &work).await);
        drop(delivery);
        assert!(!is_held(&keeper, &work).await);
        // It was taken and flushed.
        let delivery = Arc::<Delivery>::default();
        let mut body = granted(&keeper, &delivery, &work).await;
        assert!(Pin::new(&mut body).poll_frame(&mut context).is_ready());
        delivery.flushed();
        drop((body, delivery));
        assert!(is_held(&keeper, &work).await);
    }

    /// A caller sends two requests at once and reads slowly.
    #[tokio::test]
    async fn all_grants_that_are_flushed_together_are_delivered() {
        let keeper = lockkeeper::connect("memory:").await.expect("a store in this process");
        let work = Outstanding::new();
        let mut context = Context::from_waker(std::task::Waker::noop());
        let delivery = Arc::<Delivery>::default();
        for name in ["a", "b"] {
            let mut body = granted_of(name, &keeper, &delivery, &work).await;
            assert!(Pin::new(&mut body).poll_frame(&mut context).is_ready());
        }
        delivery.flushed();
        drop(delivery);
        assert!(is_held(&keeper, &work).await);
        assert!(keeper.inspect("b").await.expect("asked").is_some());
    }
}
