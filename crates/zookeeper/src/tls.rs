//! TLS: reads certificates and keys, and explains failed handshakes. Touches files, and servers after a failure.
//!
//! The client does not tell why a handshake failed, so it is tried once more here.

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

use crate::trouble::config;

/// How long a server may take to connect or to answer.
const PATIENCE: Duration = Duration::from_millis(500);

/// The files that a URL names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Tls {
    /// The certificate that signed those of the servers.
    pub(crate) ca: String,
    /// The client's certificate and its key.
    pub(crate) own: Option<(String, String)>,
}

fn read(path: &str) -> Result<String, StoreError> {
    fs::read_to_string(path).map_err(|error| config(format!("{path} could not be read")).with_source(error))
}

impl Tls {
    /// The options of the client.
    pub(crate) fn options(&self) -> Result<TlsOptions, StoreError> {
        choose_provider();
        let bad = |what: &str, error| config(format!("the {what} could not be used")).with_source(error);
        let options = TlsOptions::new().with_pem_ca(&read(&self.ca)?).map_err(|error| bad("ca", error))?;
        let Some((cert, key)) = &self.own else { return Ok(options) };
        options.with_pem_identity(&read(cert)?, &read(key)?).map_err(|error| bad("cert or key", error))
    }

    /// Explains why no session could be opened with any of `servers`, if certificates are the reason.
    pub(crate) async fn explain(self, servers: Vec<(String, u16)>) -> Option<StoreError> {
        let explained = tokio::task::spawn_blocking(move || {
            let client_config = Arc::new(self.client_config()?);
            for (host, port) in &servers {
                if let Err(error) = shake_hands(&client_config, host, *port)
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

    fn client_config(&self) -> Result<ClientConfig, StoreError> {
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
        let builder = ClientConfig::builder().with_root_certificates(roots);
        let Some((cert, key)) = &self.own else { return Ok(builder.with_no_client_auth()) };
        let secret = PrivateKeyDer::from_pem_slice(read(key)?.as_bytes())
            .map_err(|error| config(format!("{key} holds no private key")).with_source(error))?;
        builder.with_client_auth_cert(certificates(cert)?, secret).map_err(|error| bad(cert, error))
    }
}

/// Chooses the cryptography provider of the whole program, unless the program has chosen one. The client uses that one,
/// and rustls cannot choose by itself if crates of the program ask for two.
fn choose_provider() {
    if CryptoProvider::get_default().is_none() {
        // If this fails, another thread has chosen.
        drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
    }
}

/// Whether a certificate can name `host`.
pub(crate) fn can_be_certified(host: &str) -> bool {
    ServerName::try_from(host).is_ok()
}

fn shake_hands(client_config: &Arc<ClientConfig>, host: &str, port: u16) -> io::Result<()> {
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    let address = (host, port).to_socket_addrs()?.next().ok_or(io::ErrorKind::NotFound)?;
    let socket = TcpStream::connect_timeout(&address, PATIENCE)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    let connection = ClientConnection::new(client_config.clone(), name).map_err(io::Error::other)?;
    let mut stream = StreamOwned::new(connection, socket);
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock)?;
    }
    // A server that requires a client certificate refuses only after the handshake.
    stream.read(&mut [0]).map(drop)
}
