//! Streaming replicas of a PostgreSQL server, and their promotion.

use std::io;

use super::{Answer, Postgres, until, user::run};

impl Postgres {
    /// Starts a replica of this server, with the same options and certificates, which has all that this one has.
    ///
    /// It follows through the unix socket of this server, also after that was restarted.
    ///
    /// # Errors
    /// If it does not start or does not follow.
    pub fn replica(&self) -> io::Result<Self> {
        let replica = self.sibling()?;
        let mut backup = self.user.command(&self.programs.join("pg_basebackup"))?;
        backup.args(self.by_socket()).args(["--checkpoint=fast", "--write-recovery-conf", "--no-sync"]);
        run(backup.arg("--pgdata").arg(replica.data()))?;
        replica.configure_and_start()?;
        self.until_followed_by(&replica)?;
        Ok(replica)
    }

    /// Waits until `replica` has all that this server has committed.
    ///
    /// # Errors
    /// If it does not follow.
    pub fn until_followed_by(&self, replica: &Self) -> io::Result<()> {
        let written = self.sql("SELECT pg_current_wal_flush_lsn()")?;
        until(&format!("{} has all of {}", replica.address(), self.address()), || {
            let seen = replica
                .sql(&format!("SELECT seen >= '{written}', seen FROM pg_last_wal_replay_lsn() AS seen"))?;
            Ok(Answer::when(seen.starts_with('t'), format!("{seen} of {written}")))
        })
    }

    /// Makes a replica a primary. Commits that its old primary had not sent yet are lost.
    ///
    /// # Errors
    /// If it is no replica or does not obey.
    pub fn promote(&self) -> io::Result<()> {
        // It does not wait by itself: a change from the old primary may cancel a statement of a replica.
        self.sql("SELECT pg_promote(false)")?;
        until(&format!("{} is a primary", self.address()), || {
            let is_replica = self.is_replica();
            Ok(Answer::when(matches!(is_replica, Ok(false)), format!("{is_replica:?}")))
        })
    }

    /// Whether it follows another server, so that it can only be read.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn is_replica(&self) -> io::Result<bool> {
        Ok(self.sql("SELECT pg_is_in_recovery()")? == "t")
    }
}
