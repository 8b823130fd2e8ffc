//! Opens connections of the driver over TLS.

use std::{
    future::Future,
    io,
    pin::Pin,
    task::{Context, Poll},
};

use lockkeeper_core::StoreError;
use lockkeeper_tls::{Files, OptionNames};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::{
    CancelToken, Client, Config, Connection, Socket,
    tls::{ChannelBinding, MakeTlsConnect, TlsConnect},
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::{
    settings::{TlsFiles, address},
    trouble::{closed, explain, not_connected},
};

/// Connects over TLS.
pub(crate) async fn connect(
    driver: &Config,
    files: &TlsFiles,
) -> Result<(Client, Connection<Socket, Encrypted>), StoreError> {
    let maker = maker(files).await?;
    driver.connect(maker).await.map_err(|error| not_connected(&address(driver), error))
}

/// Asks over TLS to cancel what a session does.
pub(crate) async fn cancel(session: &CancelToken, files: &TlsFiles) -> Result<(), StoreError> {
    session.cancel_query(maker(files).await?).await.map_err(explain)
}

async fn maker(files: &TlsFiles) -> Result<Maker, StoreError> {
    let TlsFiles { root_cert, cert, key } = files.clone();
    let options = OptionNames { ca: "sslrootcert", cert: "sslcert", key: "sslkey" };
    // Files are read each time, because certificates are replaced before they end. Not on this thread: other sessions may be
    // between two flights.
    let files = Files { ca: root_cert, cert, key };
    let made = tokio::task::spawn_blocking(move || lockkeeper_tls::connector(&files, options)).await;
    Ok(Maker(made.map_err(|_| closed())??))
}

struct Maker(TlsConnector);

impl MakeTlsConnect<Socket> for Maker {
    type Stream = Encrypted;
    type TlsConnect = ToHost;
    type Error = io::Error;

    fn make_tls_connect(&mut self, host: &str) -> io::Result<ToHost> {
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        Ok(ToHost(self.0.clone(), name))
    }
}

struct ToHost(TlsConnector, ServerName<'static>);

impl TlsConnect<Socket> for ToHost {
    type Stream = Encrypted;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Encrypted>> + Send>>;

    fn connect(self, stream: Socket) -> Self::Future {
        Box::pin(async move { Ok(Encrypted(Box::new(self.0.connect(self.1, stream).await?))) })
    }
}

/// An encrypted stream.
pub(crate) struct Encrypted(Box<TlsStream<Socket>>);

impl tokio_postgres::tls::TlsStream for Encrypted {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for Encrypted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for Encrypted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_shutdown(context)
    }
}
