//! Replicas of a MariaDB server, and their promotion.

use std::{
    io::{self, Write as _},
    process::Stdio,
};

use super::{
    Answer, MariaDb,
    mariadb::{OWNER, PACKAGE},
    program, until,
    user::run,
};

/// The tables with users and their rights.
const USERS: [&str; 5] = ["global_priv", "db", "tables_priv", "columns_priv", "procs_priv"];

impl MariaDb {
    /// Starts a replica of this server, with the same options and certificates, which has all that this one has. It is
    /// read-only for users without special rights, until it is promoted or restarted.
    ///
    /// It follows by GTID, also after this server was restarted. If commits are to wait for it:
    /// [`wait_for_replicas`](Self::wait_for_replicas).
    ///
    /// # Errors
    /// If this server was started without [`MariaDbOptions::binary_log`](super::MariaDbOptions::binary_log), or the
    /// replica does not start or does not follow.
    pub fn replica(&self) -> io::Result<Self> {
        if !self.has_binary_log() {
            return Err(io::Error::other("started without a binary log"));
        }
        let replica = self.sibling()?;
        replica.start_empty()?;
        // Its own first steps are not a part of what it replicates.
        replica.sql("RESET MASTER; SET GLOBAL read_only = 1")?;
        self.sql("CREATE USER IF NOT EXISTS replica; GRANT REPLICATION SLAVE ON *.* TO replica")?;
        replica.take(&self.copy()?)?;
        let (port, tls) = (self.address().port(), u8::from(self.certificates().is_some()));
        replica.sql(&format!(
            "SET GLOBAL rpl_semi_sync_slave_enabled = 1; CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {port}, \
             MASTER_USER = 'replica', MASTER_SSL = {tls}, MASTER_CONNECT_RETRY = 1, MASTER_USE_GTID = slave_pos; START SLAVE"
        ))?;
        self.until_followed_by(&replica)?;
        Ok(replica)
    }

    /// SQL that makes all users and the database, and says how far the binary log was then.
    fn copy(&self) -> io::Result<String> {
        let dump = program("mariadb-dump", PACKAGE)?;
        let mut users = self.as_root(&dump);
        users.args(["--no-create-info", "--replace", "mysql"]).args(USERS);
        let mut database = self.as_root(&dump);
        database.args([
            "--single-transaction",
            "--master-data",
            "--gtid",
            "--hex-blob",
            "--databases",
            OWNER,
        ]);
        let (users, database) = (run(&mut users)?, run(&mut database)?);
        Ok(format!("SET sql_log_bin = 0;\n{users}\nFLUSH PRIVILEGES;\n{database}\n"))
    }

    /// Runs the SQL of a copy.
    fn take(&self, copy: &str) -> io::Result<()> {
        let mut client = self.as_root(self.client());
        client.arg("mysql").stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut running = client.spawn()?;
        let written = running.stdin.take().map(|mut input| input.write_all(copy.as_bytes()));
        let done = running.wait_with_output()?;
        if done.status.success() {
            return written.unwrap_or(Ok(()));
        }
        let why = String::from_utf8_lossy(&done.stderr);
        Err(io::Error::other(format!("{} takes no copy: {}", self.address(), why.trim())))
    }

    /// Waits until `replica` has all that this server has written to its binary log.
    ///
    /// # Errors
    /// If it does not follow.
    pub fn until_followed_by(&self, replica: &Self) -> io::Result<()> {
        let written = self.sql("SELECT @@gtid_binlog_pos")?;
        replica.until_applied(&written, &format!("{} has all of {}", replica.address(), self.address()))
    }

    fn until_applied(&self, position: &str, what: &str) -> io::Result<()> {
        until(what, || {
            let waited = self.sql(&format!("SELECT MASTER_GTID_WAIT('{position}', 0), @@gtid_slave_pos"))?;
            let so = waited.starts_with("0\t");
            Ok(Answer::when(so, format!("{waited} of {position}\n{}", self.replication()?)))
        })
    }

    /// From now on nobody sees a commit before a replica has received it, however long that takes. A restart ends that.
    ///
    /// # Errors
    /// If nothing follows it.
    pub fn wait_for_replicas(&self) -> io::Result<()> {
        self.sql(
            "SET GLOBAL rpl_semi_sync_master_wait_point = AFTER_SYNC, rpl_semi_sync_master_timeout = 3600000; \
             SET GLOBAL rpl_semi_sync_master_enabled = 1",
        )?;
        until(&format!("{} waits for replicas", self.address()), || {
            let seen = self.sql(
                "SHOW GLOBAL STATUS WHERE Variable_name IN ('Rpl_semi_sync_master_clients', 'Rpl_semi_sync_master_status')",
            )?;
            Ok(Answer::when(!seen.contains("clients\t0") && seen.ends_with("ON"), seen))
        })
    }

    /// Makes a replica a primary that takes writes, once it has done all that it had received. Commits that its old primary
    /// had not sent yet are lost.
    ///
    /// # Errors
    /// If it is no replica or does not obey.
    pub fn promote(&self) -> io::Result<()> {
        if !self.is_replica()? {
            return Err(io::Error::other(format!("{} is no replica", self.address())));
        }
        self.sql("STOP SLAVE IO_THREAD")?;
        let status = self.replication()?;
        let received = status.lines().find_map(|line| line.trim().strip_prefix("Gtid_IO_Pos:"));
        let received = received.ok_or_else(|| io::Error::other(status.clone()))?.trim();
        self.until_applied(received, &format!("{} has done all that it received", self.address()))?;
        self.sql("STOP SLAVE; RESET SLAVE ALL; SET GLOBAL read_only = 0").map(drop)
    }

    /// Whether it follows another server.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn is_replica(&self) -> io::Result<bool> {
        Ok(!self.replication()?.is_empty())
    }

    /// What it says of its replication: a line for each fact.
    fn replication(&self) -> io::Result<String> {
        run(self.as_root(self.client()).args(["--vertical", "--execute", "SHOW SLAVE STATUS"]))
    }
}
