//! TLS: whom to trust, what to show, and why a server could not be talked to. The client keeps that to itself, so
//! after a failure the handshake is tried once more here. Touches files and, then, the servers.

use std::{
    fs, io,
    io::Read as _,
    net::{TcpStream, ToSocketAddrs as _},
    sync::Arc,
    time::Duration,
};

use lockkeeper_core::{StoreError, StoreErrorKind};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    crypto::CryptoProvider,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
};
use zookeeper_client::TlsOptions;

use crate::settings::config;

/// How long a server may take to say something.
const PATIENCE: Duration = Duration::from_millis(500);

/// The files that a URL names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Tls {
    /// Who signed the certificates of the servers.
    pub(crate) ca: String,
    /// The own certificate and its key.
    pub(crate) own: Option<(String, String)>,
}

fn read(path: &str) -> Result<String, StoreError> {
    fs::read_to_string(path).map_err(|error| config(format!("{path} could not be read")).with_source(error))
}

impl Tls {
    /// What the client is told.
    pub(crate) fn options(&self) -> Result<TlsOptions, StoreError> {
        choose_provider();
        let bad = |what: &str, error| config(format!("the {what} could not be used")).with_source(error);
        let options = TlsOptions::new().with_pem_ca(&read(&self.ca)?).map_err(|error| bad("ca", error))?;
        let Some((cert, key)) = &self.own else { return Ok(options) };
        options.with_pem_identity(&read(cert)?, &read(key)?).map_err(|error| bad("cert or key", error))
    }

    /// Why none of `servers` could be talked to, if that is a matter of certificates.
    pub(crate) async fn explain(self, servers: &[(String, u16)]) -> Option<StoreError> {
        let servers = servers.to_vec();
        let explained = tokio::task::spawn_blocking(move || {
            let settings = Arc::new(self.settings()?);
            for (host, port) in &servers {
                if let Err(error) = shake_hands(&settings, host, *port)
                    && error.get_ref().is_some_and(|cause| cause.is::<rustls::Error>())
                {
                    let message = format!(
                        "the TLS handshake with {host}:{port} failed; check ca, cert and key, and that the server's \
                         certificate is for this host"
                    );
                    return Err(StoreError::new(StoreErrorKind::Denied, message).with_source(error));
                }
            }
            Ok(())
        });
        explained.await.ok()?.err()
    }

    fn settings(&self) -> Result<ClientConfig, StoreError> {
        choose_provider();
        let bad = |path: &str, error| config(format!("{path} could not be used")).with_source(error);
        let certificates = |path: &str| -> Result<Vec<CertificateDer<'static>>, StoreError> {
            let certificates: Result<Vec<_>, _> =
                CertificateDer::pem_slice_iter(read(path)?.as_bytes()).collect();
            certificates.map_err(|error| config(format!("{path} holds no certificates")).with_source(error))
        };
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&self.ca)? {
            roots.add(certificate).map_err(|error| bad(&self.ca, error))?;
        }
        let settings = ClientConfig::builder().with_root_certificates(roots);
        let Some((cert, key)) = &self.own else { return Ok(settings.with_no_client_auth()) };
        let secret = PrivateKeyDer::from_pem_slice(read(key)?.as_bytes())
            .map_err(|error| config(format!("{key} holds no private key")).with_source(error))?;
        settings.with_client_auth_cert(certificates(cert)?, secret).map_err(|error| bad(cert, error))
    }
}

/// The client takes the provider of the whole program, which rustls cannot choose by itself where crates ask for two.
/// A program that has chosen keeps its choice.
fn choose_provider() {
    if CryptoProvider::get_default().is_none() {
        // Whoever was faster has chosen.
        drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
    }
}

/// Whether a certificate can be for `host`.
pub(crate) fn can_be_certified(host: &str) -> bool {
    ServerName::try_from(host).is_ok()
}

fn shake_hands(settings: &Arc<ClientConfig>, host: &str, port: u16) -> io::Result<()> {
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    let address = (host, port).to_socket_addrs()?.next().ok_or(io::ErrorKind::NotFound)?;
    let socket = TcpStream::connect_timeout(&address, PATIENCE)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    let connection = ClientConnection::new(settings.clone(), name).map_err(io::Error::other)?;
    let mut stream = StreamOwned::new(connection, socket);
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock)?;
    }
    // A server that misses the client's certificate says so after the handshake.
    stream.read(&mut [0]).map(drop)
}
