//! One keeper's subscription to a topic, which ends when it is dropped.

use std::sync::{Arc, Weak};

use lockkeeper_core::{KeeperId, StoreError, store::Topic};

use crate::{
    database::Database,
    subscribers,
    ticket::{Ticket, Urgency},
    work::Work,
    writer::Writer,
};

/// A keeper's interest in a topic.
pub(crate) struct Subscription {
    writer: Weak<Writer>,
    keeper: KeeperId,
    topic: Topic,
}

impl Subscription {
    /// Subscribes. A subscription that is given up meanwhile is ended again.
    pub(crate) async fn start(
        writer: &Arc<Writer>,
        keeper: KeeperId,
        topic: Topic,
    ) -> Result<Self, StoreError> {
        let subscription = Self { writer: Arc::downgrade(writer), keeper, topic: topic.clone() };
        let add = move |database: &mut Database, ticket: &Ticket| {
            // A power cut may undo it: the keeper subscribes again after a while.
            database.write_unsynced(ticket, |work| subscribers::add(work.transaction, &topic, keeper))
        };
        writer.ask(Urgency::Usual, add).await?;
        Ok(subscription)
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let Some(writer) = self.writer.upgrade() else { return };
        let (keeper, topic) = (self.keeper, self.topic.clone());
        writer.send(Urgency::Usual, move |database| {
            let remove = |work: &mut Work<'_>| subscribers::remove(work.transaction, &topic, keeper);
            // If this fails, the keeper gets needless wakes until it closes.
            drop(database.write_unsynced(&Ticket::new(), remove));
        });
    }
}
