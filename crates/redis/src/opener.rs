//! Opens connections over TCP, TLS and unix sockets, logs in, and nothing more: it does not know their traffic.

use std::{
    io,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use lockkeeper_core::{StoreError, StoreErrorKind};
use redis::{
    AsyncConnectionConfig, ProtocolVersion, RedisConnectionInfo, Value,
    aio::{AsyncPushSender, MultiplexedConnection, PubSub},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    task::JoinHandle,
};

use crate::{
    address::Address,
    settings::{Login, Settings},
    tls::Tls,
    tls_probe, trouble,
};

/// A connected socket of any kind.
trait Socket: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Socket for T {}

/// An open connection and the task that drives it, which ends with this.
pub(crate) struct Driven {
    pub(crate) connection: MultiplexedConnection,
    driver: JoinHandle<()>,
}

impl Driven {
    /// Whether the driver has ended: a runtime that ends takes its drivers along.
    pub(crate) fn has_ended(&self) -> bool {
        self.driver.is_finished()
    }
}

impl Drop for Driven {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Opens connections as the URL says.
pub(crate) struct Opener {
    settings: Settings,
    tls: Option<Tls>,
    /// Whether any connection was ever opened.
    was_let_in: AtomicBool,
    /// Whether a server was found to speak TLS without being asked to, or not to.
    has_wrong_scheme: AtomicBool,
}

impl Opener {
    pub(crate) fn new(settings: Settings) -> Result<Self, StoreError> {
        let tls = settings.tls.as_ref().map(Tls::new).transpose()?;
        Ok(Self {
            settings,
            tls,
            was_let_in: AtomicBool::new(false),
            has_wrong_scheme: AtomicBool::new(false),
        })
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// A connection for requests. Its driver runs on the runtime of the caller.
    pub(crate) async fn for_requests(
        &self,
        address: &Address,
        pushes: Option<Box<dyn AsyncPushSender>>,
    ) -> Result<Driven, StoreError> {
        // Pushes need RESP3. A caller that wants them knows that the server has it.
        let resp3 = self.settings.resp3 || pushes.is_some();
        self.multiplexed(address, &self.settings.login, self.settings.database, resp3, pushes).await
    }

    /// A connection to a sentinel, with RESP3 if it is to push.
    pub(crate) async fn to_sentinel(
        &self,
        address: &Address,
        pushes: Option<Box<dyn AsyncPushSender>>,
    ) -> Result<Driven, StoreError> {
        self.multiplexed(address, &self.settings.sentinel_login, 0, pushes.is_some(), pushes).await
    }

    async fn multiplexed(
        &self,
        address: &Address,
        login: &Login,
        database: i64,
        resp3: bool,
        pushes: Option<Box<dyn AsyncPushSender>>,
    ) -> Result<Driven, StoreError> {
        let info = self.info(login, database, resp3);
        let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let config = match pushes {
            Some(pushes) => config.set_push_sender(Pushes(pushes)),
            None => config,
        };
        self.with_limit(address, async {
            let socket = self.socket(address).await?;
            let (connection, driver) = MultiplexedConnection::new_with_config(&info, socket, config)
                .await
                .map_err(|error| trouble::not_greeted(address, resp3, error))?;
            Ok(Driven { connection, driver: tokio::spawn(driver) })
        })
        .await
    }

    /// A connection for messages with RESP2.
    pub(crate) async fn for_messages(&self, address: &Address) -> Result<PubSub, StoreError> {
        let info = self.info(&self.settings.login, self.settings.database, self.settings.resp3);
        self.with_limit(address, async {
            let socket = self.socket(address).await?;
            PubSub::new(&info, socket)
                .await
                .map_err(|error| trouble::not_greeted(address, self.settings.resp3, error))
        })
        .await
    }

    async fn with_limit<T>(
        &self,
        address: &Address,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let timed_out = |_| trouble::too_late(&address.to_string()).not_applied();
        let opened = tokio::time::timeout(self.settings.connect_limit, work).await.map_err(timed_out);
        match opened.flatten() {
            Ok(opened) => {
                self.was_let_in.store(true, Ordering::Relaxed);
                Ok(opened)
            }
            Err(error) => Err(self.wrong_scheme(address, &error).await.unwrap_or(error)),
        }
    }

    /// The error for a server that would answer with TLS, or without. Once any server has let us in, the URL is right,
    /// and a server that is down is not asked.
    async fn wrong_scheme(&self, address: &Address, error: &StoreError) -> Option<StoreError> {
        if self.was_let_in.load(Ordering::Relaxed) {
            return None;
        }
        let wrong = match (&self.tls, error.kind()) {
            // A server without TLS looks like a bad certificate, or it waits for the end of a line.
            (Some(_), StoreErrorKind::Denied | StoreErrorKind::Unreachable) => {
                tls_probe::speaks_plain(address).await
            }
            // A server that wants TLS ends the connection.
            (None, StoreErrorKind::Unreachable) => tls_probe::speaks_tls(address).await,
            _ => false,
        };
        self.has_wrong_scheme.fetch_or(wrong, Ordering::Relaxed);
        wrong.then(|| trouble::wrong_scheme(address, &self.settings.shape, self.tls.is_none()))
    }

    /// Whether a server speaks TLS and the URL does not ask for it, or the other way round.
    pub(crate) fn has_wrong_scheme(&self) -> bool {
        self.has_wrong_scheme.load(Ordering::Relaxed)
    }

    /// How long opening a connection may take, with the question for the right scheme if it fails.
    pub(crate) fn patience(&self) -> Duration {
        let asks = !self.was_let_in.load(Ordering::Relaxed);
        self.settings.connect_limit + if asks { tls_probe::LIMIT } else { Duration::ZERO }
    }

    fn info(&self, login: &Login, database: i64, resp3: bool) -> RedisConnectionInfo {
        let protocol = if resp3 { ProtocolVersion::RESP3 } else { ProtocolVersion::RESP2 };
        let mut info = RedisConnectionInfo::default()
            .set_db(database)
            .set_protocol(protocol)
            // Servers before 7.2 would count it as an error.
            .set_skip_set_lib_name();
        if let Some(user) = &login.user {
            info = info.set_username(user);
        }
        if let Some(password) = &login.password {
            info = info.set_password(&password.0);
        }
        info
    }

    async fn socket(&self, address: &Address) -> Result<Box<dyn Socket>, StoreError> {
        self.open_socket(address).await.map_err(|error| trouble::no_socket(&address.to_string(), error))
    }

    async fn open_socket(&self, address: &Address) -> io::Result<Box<dyn Socket>> {
        let (host, port) = match address {
            #[cfg(unix)]
            Address::Unix(path) => return Ok(Box::new(tokio::net::UnixStream::connect(path).await?)),
            #[cfg(not(unix))]
            Address::Unix(_) => return Err(io::ErrorKind::Unsupported.into()),
            Address::Tcp(host, port) => (host, *port),
        };
        let stream = TcpStream::connect((&**host, port)).await?;
        stream.set_nodelay(self.settings.nodelay)?;
        keep_alive(&stream)?;
        match &self.tls {
            Some(tls) => Ok(Box::new(tls.over(stream, host).await?)),
            None => Ok(Box::new(stream)),
        }
    }
}

/// Ends the connection to a dead server within half a minute, also one that only receives messages.
fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    let socket = socket2::SockRef::from(stream);
    let keepalive = socket2::TcpKeepalive::new().with_time(Duration::from_secs(15));
    #[cfg(any(target_os = "linux", target_os = "macos"))]
    let keepalive = keepalive.with_interval(Duration::from_secs(5)).with_retries(3);
    socket.set_tcp_keepalive(&keepalive)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(Duration::from_secs(30)))?;
    Ok(())
}

/// The driver takes no boxed sender, so this passes pushes on to one.
struct Pushes(Box<dyn AsyncPushSender>);

impl AsyncPushSender for Pushes {
    fn send(&self, info: redis::PushInfo) -> Result<(), redis::aio::SendError> {
        self.0.send(info)
    }
}

/// Turns an error value into an error: in a pipeline, the driver gives errors as values.
pub(crate) fn checked(value: Value) -> Result<Value, redis::ServerError> {
    match value {
        Value::ServerError(error) => Err(error),
        value => Ok(value),
    }
}
