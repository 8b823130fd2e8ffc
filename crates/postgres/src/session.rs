//! One open connection to the server: sends statements and returns the answers. It never repeats anything.
//!
//! The driver writes a statement when its future is polled for the first time. So futures that are polled one after the
//! other, without waiting in between, travel as one flight.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::Poll,
};

use lockkeeper_core::{StoreError, support};
use tokio::{runtime::Handle, sync::mpsc, task::AbortHandle};
use tokio_postgres::{
    AsyncMessage, Client, Config, Connection, Error, NoTls, Row, Socket,
    error::Severity,
    types::{FromSqlOwned, ToSql},
};

use crate::{
    origin::Origin,
    server::{FACTS, ServerFacts, refuse_foreign},
    settings::{Encryption, Settings, Statements, address},
    statements::{COUNT, Statement},
    tls,
    trouble::{config, explain, not_connected, pooler, replica},
};

/// A parameter of a statement.
pub(crate) type Parameter<'a> = &'a (dyn ToSql + Sync);

/// An open connection.
pub(crate) struct Session {
    /// The place that its answers must come from. Nothing is read before it is known.
    pub(crate) origin: Origin,
    /// When the server started, by its own account.
    pub(crate) started: i64,
    /// The schema, in quotes.
    pub(crate) schema: String,
    client: Client,
    /// A number of its own, which only the server process that it was opened with knows.
    token: String,
    statements: Statements,
    texts: Box<[String]>,
    prepared: Box<[OnceLock<tokio_postgres::Statement>]>,
    warnings: Arc<Warnings>,
    /// Messages from other sessions, until somebody takes them.
    messages: Mutex<Option<Messages>>,
    life: Arc<Life>,
}

/// The messages that a session hears. They end with it.
pub(crate) type Messages = mpsc::UnboundedReceiver<String>;

/// Ends a session, for tasks that do not have the session itself.
#[derive(Debug)]
pub(crate) struct Life {
    is_cut: AtomicBool,
    /// Reads and writes the socket until the session is dropped and its answers have come.
    driver: AbortHandle,
}

impl Life {
    /// Closes the connection at once, even in the middle of a request. Nothing is sent on it any more.
    pub(crate) fn cut(&self) {
        self.is_cut.store(true, Ordering::Release);
        self.driver.abort();
    }
}

/// How many warnings a connection brought.
#[derive(Debug, Default)]
pub(crate) struct Warnings(AtomicU64);

/// Statements are planned once for a session: to plan them costs more than to run them, and the server would do it for each
/// anew. A plan that is kept must not depend on how large tables were when it was made, so it goes by primary keys only.
/// Where nothing else than a scan is possible, such a plan seems dear, and would be compiled.
const PLANS: &str = "-c plan_cache_mode=force_generic_plan -c enable_seqscan=off -c enable_bitmapscan=off \
                     -c enable_hashjoin=off -c enable_mergejoin=off -c jit=off";

impl Session {
    /// Connects to the server that `driver` names.
    pub(crate) async fn open(
        settings: &Settings,
        driver: &Config,
        background: &Handle,
    ) -> Result<Self, StoreError> {
        let (sender, messages) = mpsc::unbounded_channel();
        let warnings = Arc::<Warnings>::default();
        let token = format!("{:016x}", getrandom::u64().unwrap_or_default());
        let mut config = driver.clone();
        if settings.statements == Statements::Prepared {
            config.options(format!("-c lockkeeper.session={token} {PLANS}"));
        }
        let (client, driver) = match &settings.encryption {
            Encryption::None => {
                let connected = config.connect(NoTls).await;
                let (client, connection) =
                    connected.map_err(|error| not_connected(&address(&config), error))?;
                (client, background.spawn(drive(connection, warnings.clone(), sender)))
            }
            Encryption::Verified(files) => {
                let (client, connection) = tls::connect(&config, files).await?;
                (client, background.spawn(drive(connection, warnings.clone(), sender)))
            }
        };
        let texts = Statement::ALL.iter().map(|statement| statement.text(&settings.schema));
        Ok(Self {
            origin: Origin::default(),
            started: 0,
            schema: format!("\"{}\"", settings.schema),
            client,
            token,
            statements: settings.statements,
            texts: texts.collect(),
            prepared: (0..COUNT).map(|_| OnceLock::new()).collect(),
            warnings,
            messages: Mutex::new(Some(messages)),
            life: Arc::new(Life { is_cut: AtomicBool::new(false), driver: driver.abort_handle() }),
        })
    }

    /// Whether the connection has ended.
    pub(crate) fn is_closed(&self) -> bool {
        self.life.is_cut.load(Ordering::Acquire) || self.client.is_closed()
    }

    /// Closes the connection at once, even in the middle of a request. Nothing is sent on it any more.
    pub(crate) fn cut(&self) {
        self.life.cut();
    }

    /// Asks the server, on a connection of its own, to cancel what the session does. The server says neither whether it did,
    /// nor when. So this is not for poolers: when the request arrives there, or at an old one's server, somebody else's
    /// transaction may have come in place of this one's.
    pub(crate) fn cancelling(
        &self,
        encryption: &Encryption,
    ) -> impl Future<Output = Result<(), StoreError>> + Send + use<> {
        let (token, encryption) = (self.client.cancel_token(), encryption.clone());
        async move {
            match &encryption {
                Encryption::None => token.cancel_query(NoTls).await.map_err(explain),
                Encryption::Verified(files) => tls::cancel(&token, files).await,
            }
        }
    }

    /// Takes the messages that it hears; `None` after the first call.
    pub(crate) fn take_messages(&self) -> Option<Messages> {
        support::lock(&self.messages).take()
    }

    /// The handle that ends it.
    pub(crate) fn life(&self) -> &Arc<Life> {
        &self.life
    }

    /// How many warnings came so far. One that comes with a commit means that its outcome is not known: the server may have
    /// stopped waiting for its replicas.
    pub(crate) fn warnings(&self) -> u64 {
        self.warnings.0.load(Ordering::Acquire)
    }

    /// Asks the server for its facts. Refuses servers that cannot keep locks, and poolers that the URL leaves out.
    pub(crate) async fn greet(&self) -> Result<ServerFacts, StoreError> {
        let explain = |error| explain(error).not_applied();
        // A foreign server may know its version only.
        let (name, facts) = (self.one::<String>("SELECT version()"), self.rows(FACTS));
        let (name, facts) = if self.is_pooled() {
            (name.await, facts.await)
        } else {
            // One flight.
            tokio::join!(biased; name, facts)
        };
        let name = name.map_err(explain)?;
        refuse_foreign(&name)?;
        let facts = facts.map_err(explain)?;
        let facts = facts.first().ok_or_else(|| config("the server does not say what it is"))?;
        if facts.try_get::<_, i32>(0).map_err(explain)? < 130_000 {
            return Err(config(format!("the server is {name}; use PostgreSQL 13 or newer")));
        }
        if facts.try_get(1).map_err(explain)? {
            return Err(replica());
        }
        if self.statements == Statements::Prepared {
            if facts.try_get::<_, Option<&str>>(6).map_err(explain)? != Some(&self.token) {
                return Err(pooler());
            }
            self.batch(&format!("PREPARE {} AS SELECT 1", self.mark())).await.map_err(explain)?;
        }
        Ok(ServerFacts {
            started: facts.try_get(2).map_err(explain)?,
            timeline: facts.try_get(3).map_err(explain)?,
            backend: facts.try_get(4).map_err(explain)?,
            user: facts.try_get(5).map_err(explain)?,
        })
    }

    /// A statement that only the server process of this session knows.
    fn mark(&self) -> String {
        format!("lockkeeper_{}", self.token)
    }

    /// Settles the place that its answers must come from.
    pub(crate) fn set_origin(&mut self, facts: &ServerFacts, store: String) {
        let is_own = self.statements == Statements::Prepared;
        self.origin = Origin { backend: is_own.then_some(facts.backend.into()), store };
        self.started = facts.started;
    }

    /// Runs statements without parameters, and waits for them.
    pub(crate) async fn batch(&self, text: &str) -> Result<(), Error> {
        self.client.batch_execute(text).await
    }

    /// Runs a statement that is used rarely.
    pub(crate) async fn rows(&self, text: &str) -> Result<Vec<Row>, Error> {
        self.client.query_typed(text, &[]).await
    }

    /// The one value that a statement gives.
    pub(crate) async fn one<T: FromSqlOwned>(&self, text: &str) -> Result<T, Error> {
        self.client.query_typed_one(text, &[]).await?.try_get(0)
    }

    /// Whether a pooler is between. Then nothing may be sent before the transaction before it is answered to its end: a
    /// pooler that has read a statement only in part may send the rest of it to another server process, which runs a
    /// stranger's statement instead.
    pub(crate) fn is_pooled(&self) -> bool {
        self.statements == Statements::Unnamed
    }

    /// Whether these can be sent without waiting.
    pub(crate) fn is_ready(&self, statements: &[Statement]) -> bool {
        let is_prepared = |statement: &Statement| self.prepared[*statement as usize].get().is_some();
        self.statements == Statements::Unnamed || statements.iter().all(is_prepared)
    }

    /// Prepares statements, so that they can be sent without waiting. Not inside of a transaction.
    ///
    /// They are prepared in one transaction that runs the session's own mark. So all of them are on the one server process
    /// that has the mark, also if an unknown pooler is between.
    pub(crate) async fn prepare(&self, statements: &[Statement]) -> Result<(), Error> {
        if self.is_ready(statements) {
            return Ok(());
        }
        let missing =
            statements.iter().filter(|statement| self.prepared[**statement as usize].get().is_none());
        let preparing = missing.map(|statement| async move {
            let (text, types) = (&self.texts[*statement as usize], statement.parts().1);
            let prepared = self.client.prepare_typed(text, types).await?;
            // Nobody else prepares on this connection meanwhile, and it would be the same one.
            drop(self.prepared[*statement as usize].set(prepared));
            Ok(())
        });
        let begin = format!("BEGIN; EXECUTE {}", self.mark());
        // They travel together.
        let (begun, prepared, ended) = tokio::join!(
            biased;
            self.batch(&begin),
            all(preparing.map(Box::pin).collect()),
            self.batch("COMMIT"),
        );
        begun?;
        for prepared in prepared {
            prepared?;
        }
        ended
    }

    /// Runs a statement. It is sent at the first poll if it was prepared.
    pub(crate) async fn query(
        &self,
        statement: Statement,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, Error> {
        if let Some(prepared) = self.prepared[statement as usize].get() {
            return self.client.query(prepared, parameters).await;
        }
        if self.statements == Statements::Prepared {
            self.prepare(&[statement]).await?;
            return Box::pin(self.query(statement, parameters)).await;
        }
        let typed: Vec<_> = parameters.iter().copied().zip(statement.parts().1.iter().cloned()).collect();
        self.client.query_typed(&self.texts[statement as usize], &typed).await
    }
}

/// Waits for all of these, which are polled in their order.
async fn all<F: Future + Unpin>(mut futures: Vec<F>) -> Vec<F::Output> {
    let mut done: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    poll_fn(|context| {
        for (future, done) in futures.iter_mut().zip(&mut done).filter(|(_, done)| done.is_none()) {
            if let Poll::Ready(output) = Pin::new(future).poll(context) {
                *done = Some(output);
            }
        }
        if done.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    done.into_iter().flatten().collect()
}

/// Reads and writes the socket until the connection ends.
pub(crate) async fn drive<T>(
    mut connection: Connection<Socket, T>,
    warnings: Arc<Warnings>,
    messages: mpsc::UnboundedSender<String>,
) where
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    while let Some(message) = poll_fn(|context| connection.poll_message(context)).await {
        match message {
            Ok(AsyncMessage::Notification(notification)) => {
                // The listener may have ended.
                messages.send(notification.payload().to_owned()).ok();
            }
            Ok(AsyncMessage::Notice(notice)) => {
                if notice.parsed_severity() == Some(Severity::Warning) {
                    warnings.0.fetch_add(1, Ordering::AcqRel);
                }
                tracing::debug!(notice = notice.message(), "the server says");
            }
            Ok(_) => {}
            Err(error) => {
                tracing::debug!(%error, "a connection to the server ended");
                return;
            }
        }
    }
}
