//! TLS: streams over it.

use std::io;

use lockkeeper_core::StoreError;
use lockkeeper_tls::{Files, OptionNames};
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::settings::TlsFiles;

/// TLS with the servers of a URL.
pub(crate) struct Tls(TlsConnector);

impl Tls {
    pub(crate) fn new(files: &TlsFiles) -> Result<Self, StoreError> {
        let TlsFiles { ca, cert, key } = files.clone();
        let options = OptionNames { ca: "ca", cert: "cert", key: "key" };
        lockkeeper_tls::connector(&Files { ca, cert, key }, options).map(Self)
    }

    /// Begins TLS over `stream` with `host`.
    pub(crate) async fn over(&self, stream: TcpStream, host: &str) -> io::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        self.0.connect(name, stream).await
    }
}
