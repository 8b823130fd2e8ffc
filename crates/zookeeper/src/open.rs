//! Opens sessions: connects a client to one of the servers, and says why none was opened. Touches the network, and the files
//! that TLS needs.

use std::{future::Future, time::Duration};

use lockkeeper_core::{StoreError, StoreErrorKind, support::url_parts};
use tokio::{net::TcpStream, task::JoinSet};
use zookeeper_client::{Client, Connector, Error, SaslOptions};

use crate::{
    settings::{Auth, Login, Settings},
    trouble::{no_session_opened, trouble},
};

/// A server that accepts a connection and says nothing holds the client up for a good part of a session. So after this
/// time another attempt begins beside the first. The client begins each attempt with a random server.
const NEXT_ATTEMPT: Duration = Duration::from_millis(100);

/// How many attempts run beside each other, at most.
const ATTEMPTS: u32 = 8;

/// How long a server may take to be connected to when it is asked why there is no session.
const REACHED_WITHIN: Duration = Duration::from_millis(500);

/// The end of a session whose client goes away without closing it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lifetime {
    /// The session is closed with the client.
    Client,
    /// The session outlives the client, until its timeout.
    Timeout,
}

impl Settings {
    /// Opens a session that ends without a sign of life for `timeout`, as far as the server allows it.
    pub(crate) async fn open(&self, timeout: Duration, lifetime: Lifetime) -> Result<Client, StoreError> {
        let mut attempts = JoinSet::new();
        let most = if self.servers.contains(',') { ATTEMPTS } else { 1 };
        for attempt in 1..=most {
            attempts.spawn(self.attempt(&self.servers, timeout, lifetime)?);
            let next = tokio::time::sleep(if attempt < most { NEXT_ATTEMPT } else { Duration::MAX });
            tokio::pin!(next);
            loop {
                let attempted = tokio::select! {
                    biased;
                    Some(attempted) = attempts.join_next() => attempted,
                    () = next.as_mut() => break,
                };
                match attempted.unwrap_or(Err(Error::ClientClosed)) {
                    Ok(client) => return Ok(client),
                    Err(error) if attempts.is_empty() => return Err(trouble(error)),
                    // Another attempt may have met a better server.
                    Err(_) => {}
                }
            }
        }
        Err(trouble(Error::Timeout))
    }

    /// One attempt to open a session with any of `servers`.
    pub(crate) fn attempt(
        &self,
        servers: &str,
        timeout: Duration,
        lifetime: Lifetime,
    ) -> Result<impl Future<Output = Result<Client, Error>> + Send + use<>, StoreError> {
        let mut connector = self.connector(timeout)?.with_fail_eagerly();
        if lifetime == Lifetime::Timeout {
            connector = connector.with_detached();
        }
        let (servers, secure) = (servers.to_owned(), self.tls.is_some());
        Ok(async move {
            if secure { connector.secure_connect(&servers).await } else { connector.connect(&servers).await }
        })
    }

    fn connector(&self, timeout: Duration) -> Result<Connector, StoreError> {
        // A silent server is given up as soon as by the keeper's own session, however long this session is to last:
        // waiters in it hold up everybody behind them.
        let silent = self.session.min(timeout) * 2 / 5;
        let mut connector = Client::connector().with_session_timeout(timeout).with_connection_timeout(silent);
        if let Some(Login { user, password, auth }) = &self.login {
            connector = match auth {
                Auth::Digest => connector.with_auth("digest", format!("{user}:{password}").as_bytes()),
                Auth::Sasl => connector.with_sasl(SaslOptions::digest_md5(user.clone(), password.clone())),
            };
        }
        if let Some(tls) = &self.tls {
            connector = connector.with_tls(tls.options()?);
        }
        Ok(connector)
    }

    /// The reason why no session could be opened with any server: the client tells none, so each is tried once more.
    pub(crate) async fn explain(&self, error: StoreError) -> StoreError {
        if error.kind() != StoreErrorKind::Unreachable {
            return error;
        }
        if let Some(tls) = &self.tls
            && let Some(better) = tls.clone().explain(self.addresses()).await
        {
            return better;
        }
        let tries: Vec<_> =
            self.addresses().into_iter().map(|(host, port)| tokio::spawn(reach(host, port))).collect();
        let mut told = Vec::new();
        for tried in tries {
            told.extend(tried.await.ok());
        }
        no_session_opened(&told)
    }
}

/// Connects to a server once, and reports the outcome in words.
async fn reach(host: String, port: u16) -> String {
    let address = url_parts::address(&host, port);
    match tokio::time::timeout(REACHED_WITHIN, TcpStream::connect((&*host, port))).await {
        Ok(Ok(_)) => format!("{address} takes connections, but opened no session"),
        Ok(Err(error)) => format!("could not connect to {address}: {error}"),
        Err(_) => format!("could not connect to {address} in time"),
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn servers_that_cannot_be_reached_are_named_and_why() {
        let (silent, gone) = tokio::join!(TcpListener::bind("127.0.0.1:0"), TcpListener::bind("127.0.0.1:0"));
        let (silent, gone) = (silent.expect("a port"), gone.expect("a port"));
        let silent_at = silent.local_addr().expect("bound");
        let gone_at = gone.local_addr().expect("bound");
        drop(gone);
        let url = format!("zookeeper://ada:canary@{gone_at},{silent_at}");
        let settings = Settings::parse(&url).expect("a good URL");
        let error = settings.explain(trouble(Error::NoHosts)).await;
        let told = error.to_string();
        assert!(told.starts_with(&format!("could not connect to {gone_at}: Connection refused")), "{told}");
        assert!(told.contains(&format!("{silent_at} takes connections, but opened no session")), "{told}");
        assert!(told.contains("check that") && !format!("{error:?}").contains("canary"), "{error:?}");
        let refused = settings.explain(trouble(Error::AuthFailed)).await;
        assert_eq!(refused.kind(), StoreErrorKind::Denied, "what a server said stays as it is");
    }
}
