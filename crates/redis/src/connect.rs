//! Opens connections: TCP, TLS and unix.

use std::{io, time::Duration};

use lockkeeper_core::StoreError;
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
    settings::{Address, Login, Settings},
    tls::Tls,
    trouble,
};

/// A connected socket of any kind.
pub(crate) trait Socket: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Socket for T {}

/// Opens connections as the URL says.
pub(crate) struct Opener {
    settings: Settings,
    tls: Option<Tls>,
}

impl Opener {
    pub(crate) fn new(settings: Settings) -> Result<Self, StoreError> {
        let tls = settings.tls.as_ref().map(Tls::new).transpose()?;
        Ok(Self { settings, tls })
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// A connection for requests, and the task that drives it on the runtime of the caller.
    pub(crate) async fn requests(
        &self,
        address: &Address,
        pushes: Option<Box<dyn AsyncPushSender>>,
    ) -> Result<(MultiplexedConnection, JoinHandle<()>), StoreError> {
        // Pushes come with RESP3 only, and who asks for them knows that the server has it.
        let resp3 = self.settings.resp3 || pushes.is_some();
        self.multiplexed(address, &self.settings.login, self.settings.database, resp3, pushes).await
    }

    /// The same to a sentinel, with RESP3 if it is to push.
    pub(crate) async fn sentinel(
        &self,
        address: &Address,
        pushes: Option<Box<dyn AsyncPushSender>>,
    ) -> Result<(MultiplexedConnection, JoinHandle<()>), StoreError> {
        self.multiplexed(address, &self.settings.sentinel_login, 0, pushes.is_some(), pushes).await
    }

    async fn multiplexed(
        &self,
        address: &Address,
        login: &Login,
        database: i64,
        resp3: bool,
        pushes: Option<Box<dyn AsyncPushSender>>,
    ) -> Result<(MultiplexedConnection, JoinHandle<()>), StoreError> {
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
            Ok((connection, tokio::spawn(driver)))
        })
        .await
    }

    /// A connection for messages.
    pub(crate) async fn messages(&self, address: &Address) -> Result<PubSub, StoreError> {
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
        tokio::time::timeout(self.settings.connect_limit, work).await.map_err(timed_out)?
    }

    fn info(&self, login: &Login, database: i64, resp3: bool) -> RedisConnectionInfo {
        let protocol = if resp3 { ProtocolVersion::RESP3 } else { ProtocolVersion::RESP2 };
        let mut info = RedisConnectionInfo::default()
            .set_db(database)
            .set_protocol(protocol)
            // Servers before 7.2 count it as an error.
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
        self.dial(address).await.map_err(|error| trouble::not_dialled(&address.to_string(), error))
    }

    async fn dial(&self, address: &Address) -> io::Result<Box<dyn Socket>> {
        let (host, port) = match address {
            #[cfg(unix)]
            Address::Unix(path) => return Ok(Box::new(tokio::net::UnixStream::connect(path).await?)),
            #[cfg(not(unix))]
            Address::Unix(_) => return Err(io::ErrorKind::Unsupported.into()),
            Address::Tcp(host, port) => (host, *port),
        };
        let stream = TcpStream::connect((&**host, port)).await?;
        stream.set_nodelay(self.settings.nodelay)?;
        tune(&stream)?;
        match &self.tls {
            Some(tls) => tls.over(stream, host).await,
            None => Ok(Box::new(stream)),
        }
    }
}

/// A dead peer is noticed within half a minute, also by those who only listen.
fn tune(stream: &TcpStream) -> io::Result<()> {
    let socket = socket2::SockRef::from(stream);
    let keepalive = socket2::TcpKeepalive::new().with_time(Duration::from_secs(15));
    #[cfg(any(target_os = "linux", target_os = "macos"))]
    let keepalive = keepalive.with_interval(Duration::from_secs(5)).with_retries(3);
    socket.set_tcp_keepalive(&keepalive)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(Duration::from_secs(30)))?;
    Ok(())
}

/// A sender behind a box, which the driver's own trait does not know.
struct Pushes(Box<dyn AsyncPushSender>);

impl AsyncPushSender for Pushes {
    fn send(&self, info: redis::PushInfo) -> Result<(), redis::aio::SendError> {
        self.0.send(info)
    }
}

/// Whether a value is an error, which inside of a pipeline is a value like others.
pub(crate) fn checked(value: Value) -> Result<Value, redis::ServerError> {
    match value {
        Value::ServerError(error) => Err(error),
        value => Ok(value),
    }
}
