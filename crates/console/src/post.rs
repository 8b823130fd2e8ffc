//! Posts JSON to a URL, over TLS if the URL says so. Each request has a connection of its own.

use std::{fmt, io, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{
    Request, StatusCode, Uri,
    client::conn::http1,
    header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue, USER_AGENT},
};
use hyper_util::rt::TokioIo;
use lockkeeper::{store::BoxFuture, support::sentence};
use lockkeeper_tls::{Files, OptionNames};
use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;

/// How long one request may take.
const LIMIT: Duration = Duration::from_secs(10);
/// How long connecting to one of its addresses may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);
/// The most bytes of an answer that are read, so that the receiver sees its end.
const MOST_READ: usize = 64 * 1024;

/// The error of a message that was not delivered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PostError {
    /// It may work later.
    Passing(String),
    /// The receiver failed, perhaps at this message. It may work later.
    Failed(String),
    /// It will never work.
    Refused(String),
}

impl fmt::Display for PostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passing(why) | Self::Failed(why) | Self::Refused(why) => f.write_str(why),
        }
    }
}

/// Delivers messages.
pub trait Post: Send + Sync {
    /// Returns the receiver, without secrets.
    fn receiver(&self) -> &str;

    /// Delivers one message.
    fn post(&self, body: Bytes) -> BoxFuture<'_, Result<(), PostError>>;
}

/// The parts of a URL.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Target {
    tls: bool,
    host: String,
    port: u16,
    authority: String,
    path: String,
}

impl Target {
    /// Reads a URL. Error messages do not repeat it, since it may have secrets.
    pub(crate) fn parse(url: &str) -> Result<Self, &'static str> {
        let wrong = "give a URL like https://hooks.example/path";
        let url: Uri = url.parse().map_err(|_| wrong)?;
        let tls = match url.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(wrong),
        };
        let authority = url.authority().ok_or(wrong)?;
        if authority.as_str().contains('@') {
            return Err("a user in the URL is not sent; give authorization = \"Basic …\" instead");
        }
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        let port = authority.port_u16().unwrap_or(if tls { 443 } else { 80 });
        let path = url.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        Ok(Self { tls, host, port, authority: authority.as_str().to_owned(), path })
    }
}

/// Posts by HTTP.
pub struct Http {
    target: Target,
    authorization: Option<HeaderValue>,
    tls: Option<TlsConnector>,
}

impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Http({})", self.target.authority)
    }
}

impl Http {
    /// Makes a client that posts to `url`, with this text as the header `Authorization`.
    ///
    /// # Errors
    /// Names the mistake in the URL or in the text, without repeating them.
    pub fn new(url: &str, authorization: Option<&str>) -> Result<Self, String> {
        let target = Target::parse(url)?;
        let authorization = authorization.map(|text| {
            let mut value =
                HeaderValue::from_str(text).map_err(|_| "authorization cannot be sent as a header")?;
            value.set_sensitive(true);
            Ok::<_, &str>(value)
        });
        let tls = target.tls.then(|| {
            let options = OptionNames { ca: "ca", cert: "cert", key: "key" };
            lockkeeper_tls::connector(&Files::default(), options).map_err(|error| sentence::of(&error))
        });
        Ok(Self { authorization: authorization.transpose()?, tls: tls.transpose()?, target })
    }

    async fn deliver(&self, body: Bytes) -> Result<(), PostError> {
        let passing = |error: &dyn std::error::Error| PostError::Passing(sentence::of(error));
        let address = (self.target.host.as_str(), self.target.port);
        let addresses = tokio::net::lookup_host(address).await.map_err(|error| passing(&error))?;
        let bytes = connect(addresses).await.map_err(|error| passing(&error))?;
        let Some(tls) = &self.tls else { return self.exchange(bytes, body).await };
        let name = ServerName::try_from(self.target.host.clone())
            .map_err(|_| PostError::Refused("the host's name cannot have a certificate".into()))?;
        let bytes = tls.connect(name, bytes).await.map_err(|error| passing(&error))?;
        self.exchange(bytes, body).await
    }

    async fn exchange<T>(&self, bytes: T, body: Bytes) -> Result<(), PostError>
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let passing = |error: hyper::Error| PostError::Passing(sentence::of(&error));
        let (mut sender, connection) = http1::handshake(TokioIo::new(bytes)).await.map_err(passing)?;
        let answer = async {
            let response = sender.send_request(self.request(body)?).await.map_err(passing)?;
            let status = response.status();
            // The body does not matter, but a receiver that is cut off in the middle of it may count that as a failure.
            drop(Limited::new(response.into_body(), MOST_READ).collect().await);
            judge(status)
        };
        tokio::pin!(connection, answer);
        tokio::select! {
            biased;
            answer = &mut answer => answer,
            ended = &mut connection => match ended {
                // The connection has ended, and all bytes have arrived.
                Ok(()) => answer.await,
                Err(error) => Err(passing(error)),
            },
        }
    }

    fn request(&self, body: Bytes) -> Result<Request<Full<Bytes>>, PostError> {
        let mut request = Request::post(&self.target.path)
            .header(HOST, &self.target.authority)
            .header(CONTENT_TYPE, "application/json")
            .header(USER_AGENT, concat!("lockkeeper/", env!("CARGO_PKG_VERSION")));
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        request.body(Full::new(body)).map_err(|error| PostError::Refused(error.to_string()))
    }
}

/// Connects to the first address that answers. Each has a time limit of its own, so a dead one does not take the time
/// of the others.
async fn connect(addresses: impl Iterator<Item = SocketAddr>) -> io::Result<TcpStream> {
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for address in addresses {
        match tokio::time::timeout(CONNECT_LIMIT, TcpStream::connect(address)).await {
            Ok(Ok(bytes)) => return Ok(bytes),
            Ok(Err(error)) => failed = error,
            Err(_) => failed = io::ErrorKind::TimedOut.into(),
        }
    }
    Err(failed)
}

fn judge(status: StatusCode) -> Result<(), PostError> {
    let says = || format!("the receiver answered {status}");
    match status.as_u16() {
        200..300 => Ok(()),
        // The receiver asks for another try.
        408 | 425 | 429 | 502..=504 => Err(PostError::Passing(says())),
        500.. => Err(PostError::Failed(says())),
        _ => Err(PostError::Refused(says())),
    }
}

impl Post for Http {
    fn receiver(&self) -> &str {
        &self.target.authority
    }

    fn post(&self, body: Bytes) -> BoxFuture<'_, Result<(), PostError>> {
        Box::pin(async move {
            let late = PostError::Passing(format!("no answer within {} s", LIMIT.as_secs()));
            tokio::time::timeout(LIMIT, self.deliver(body)).await.unwrap_or(Err(late))
        })
    }
}

/// Returns a client for the webhook of a rule.
pub(crate) fn of_rule(url: &str, authorization: Option<&str>) -> Result<Arc<dyn Post>, String> {
    Ok(Arc::new(Http::new(url, authorization)?))
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    #[test]
    fn urls_are_read() {
        let target = Target::parse("https://hooks.example/a/b?c=d").expect("good");
        assert_eq!(
            (target.tls, &*target.host, target.port, &*target.path),
            (true, "hooks.example", 443, "/a/b?c=d")
        );
        let target = Target::parse("http://[::1]:8080").expect("good");
        assert_eq!((target.tls, &*target.host, target.port, &*target.path), (false, "::1", 8080, "/"));
        for bad in ["", "hooks.example", "ftp://x/", "https:///x", "http://user:pass@x/"] {
            assert!(Target::parse(bad).is_err(), "{bad}");
        }
    }

    /// Starts a receiver that answers one request with `answer`, and returns the request.
    async fn receiver(answer: &'static str) -> (String, tokio::task::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}/hook", listener.local_addr().expect("an address"));
        let got = tokio::spawn(async move {
            let (mut bytes, _) = listener.accept().await.expect("a client");
            let mut got = Vec::new();
            while !got.ends_with(b"}") {
                let mut some = [0; 4096];
                let count = bytes.read(&mut some).await.expect("bytes");
                got.extend_from_slice(&some[..count]);
            }
            bytes.write_all(answer.as_bytes()).await.expect("a reader");
            String::from_utf8(got).expect("text")
        });
        (url, got)
    }

    #[tokio::test]
    async fn json_is_posted_with_its_authorization() {
        let (url, got) = receiver("HTTP/1.1 204 No Content\r\n\r\n").await;
        let http = Http::new(&url, Some("Bearer canary")).expect("a good URL");
        assert_eq!(http.post(Bytes::from_static(b"{}")).await, Ok(()));
        let got = got.await.expect("a request");
        assert!(got.starts_with("POST /hook HTTP/1.1\r\n"), "{got}");
        assert!(
            got.contains("authorization: Bearer canary\r\n") && got.contains("application/json"),
            "{got}"
        );
        assert!(!format!("{http:?}").contains("canary"));
    }

    #[tokio::test]
    async fn answers_say_whether_to_try_again() {
        for (answer, passing) in [
            ("HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n", true),
            ("HTTP/1.1 429 Slow\r\ncontent-length: 0\r\n\r\n", true),
            ("HTTP/1.1 404 Gone\r\ncontent-length: 0\r\n\r\n", false),
            ("HTTP/1.1 302 There\r\nlocation: http://x/\r\ncontent-length: 0\r\n\r\n", false),
            ("nonsense\r\n\r\n", true),
            ("", true),
        ] {
            let (url, _got) = receiver(answer).await;
            let outcome = Http::new(&url, None).expect("a good URL").post(Bytes::from_static(b"{}")).await;
            assert_eq!(matches!(outcome, Err(PostError::Passing(_))), passing, "{answer:?}: {outcome:?}");
            assert!(outcome.is_err(), "{answer:?}");
        }
    }

    /// Returns an address that lets connections wait for ever: its queue of connections is full and nobody takes them.
    async fn dead() -> (SocketAddr, Vec<TcpStream>, TcpListener) {
        let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
        socket.bind("127.0.0.1:0".parse().expect("an address")).expect("a port");
        let address = socket.local_addr().expect("an address");
        let listener = socket.listen(1).expect("it listens");
        let mut waiting = Vec::new();
        while let Ok(Ok(one)) =
            tokio::time::timeout(Duration::from_millis(200), TcpStream::connect(address)).await
        {
            waiting.push(one);
        }
        (address, waiting, listener)
    }

    #[tokio::test]
    async fn an_address_that_is_dead_does_not_take_the_time_of_the_others() {
        let (dead, _waiting, _listener) = dead().await;
        let alive = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let good = alive.local_addr().expect("an address");
        let connected = tokio::time::timeout(LIMIT / 2, connect([dead, good].into_iter())).await;
        let connected = connected.expect("in time").expect("it is there");
        assert_eq!(connected.peer_addr().expect("connected"), good);
    }

    #[tokio::test]
    async fn nobody_there_is_passing() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}/", listener.local_addr().expect("an address"));
        drop(listener);
        let outcome = Http::new(&url, None).expect("a good URL").post(Bytes::new()).await;
        assert!(matches!(outcome, Err(PostError::Passing(_))), "{outcome:?}");
    }
}
