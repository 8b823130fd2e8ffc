//! With `wait=n`: a grant or renewal counts only when enough replicas have it.

use std::{
    ops::Range,
    time::{Duration, Instant},
};

use lockkeeper_core::{
    StoreError, StoreErrorKind,
    store::{Answer, Claim, Leave, Renewed, Request, Verdict},
};

use crate::{calls::Source, servers::Priority, store::RedisStore};

/// Entries of a group that were written over one connection.
pub(crate) struct Written {
    pub(crate) entries: Range<usize>,
    pub(crate) source: Source,
}

/// How many replicas have the writes, asked once for each connection: in a cluster the entries share connections.
struct Replicas<'a> {
    store: &'a RedisStore,
    priority: Priority,
    known: Vec<(Source, i64)>,
}

impl Replicas<'_> {
    async fn of(&mut self, source: &Source) -> Result<i64, StoreError> {
        if let Some((_, replicas)) = self.known.iter().find(|(known, _)| known.is_same(source)) {
            return Ok(*replicas);
        }
        let (servers, patience) = (&self.store.servers, self.store.replica_patience());
        let until = Instant::now() + patience + servers.limit / 2;
        let connection = source.server.connection(self.priority);
        let replicas =
            connection.replicas(source.generation, servers.settings().wait, patience, until).await?;
        self.known.push((source.clone(), replicas));
        Ok(replicas)
    }
}

impl RedisStore {
    /// How long replicas are waited for.
    fn replica_patience(&self) -> Duration {
        self.servers.settings().wait_limit.min(self.servers.limit / 2)
    }

    fn replicas(&self, priority: Priority) -> Replicas<'_> {
        Replicas { store: self, priority, known: Vec::new() }
    }

    /// Refuses grants that too few replicas have, and leaves again.
    pub(crate) async fn refuse_unreplicated(
        &self,
        group: &[&Request],
        answers: &mut [Answer],
        granted: Vec<Written>,
    ) -> Result<(), StoreError> {
        let wanted = self.servers.settings().wait;
        if wanted == 0 {
            return Ok(());
        }
        let mut leaves = Vec::new();
        let mut replicas = self.replicas(Priority::Normal);
        for Written { entries, source } in granted {
            let have = replicas.of(&source).await?;
            if have >= i64::from(wanted) {
                continue;
            }
            let patience = self.replica_patience();
            let message = format!(
                "the grant reached {have} of {wanted} replicas within {patience:?} and was given back; check the replicas, \
                 or lower wait="
            );
            for entry in entries {
                if matches!(answers[entry], Answer::Claim(Verdict::Granted(_)))
                    && let Request::Claim(claim) = group[entry]
                {
                    leaves.push(leave(claim));
                    let error = StoreError::new(StoreErrorKind::Conflict, message.as_str());
                    answers[entry] = Answer::Claim(Verdict::Refused(error));
                }
            }
        }
        // If this fails too, the keeper cleans up, as after every claim whose result is not known.
        let leaves: Vec<&Request> = leaves.iter().collect();
        let calls = self.apply_calls(&leaves, self.entries_per_call(leaves.len()));
        for reply in self.servers.run(Priority::Normal, &calls).await {
            reply.map_err(StoreError::perhaps_applied)?;
        }
        Ok(())
    }

    /// Makes renewals unknown that too few replicas have: the server that renewed them may no longer be the master.
    pub(crate) async fn doubt_unreplicated(&self, renewed: &mut [Renewed], written: Vec<Written>) {
        let wanted = i64::from(self.servers.settings().wait);
        if wanted == 0 {
            return;
        }
        let mut replicas = self.replicas(Priority::Urgent);
        for Written { entries, source } in written {
            let entries = &mut renewed[entries];
            let is_held = |renewed: &Renewed| matches!(renewed, Renewed::Held(_));
            if !entries.iter().any(is_held) {
                continue;
            }
            let have = match replicas.of(&source).await {
                Ok(have) => have,
                Err(_) => {
                    // Not asked again for the other entries of this connection.
                    replicas.known.push((source, 0));
                    0
                }
            };
            if have < wanted {
                for renewed in entries.iter_mut().filter(|renewed| is_held(renewed)) {
                    *renewed = Renewed::Unknown;
                }
            }
        }
    }
}

/// Gives a grant back; late copies of its claim do nothing.
fn leave(claim: &Claim) -> Request {
    Request::Leave(Leave {
        name: claim.name.clone(),
        contender: claim.contender,
        tombstone_until: Some(claim.not_after),
        hold_at_least: Duration::ZERO,
    })
}
