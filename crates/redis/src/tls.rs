//! TLS: the certificates to trust, the certificate to show, and streams over it.

use std::{fs, io, path::Path, sync::Arc};

use lockkeeper_core::StoreError;
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::{settings::TlsFiles, trouble};

/// TLS with the servers of a URL.
pub(crate) struct Tls(TlsConnector);

impl Tls {
    pub(crate) fn new(files: &TlsFiles) -> Result<Self, StoreError> {
        connector(files).map(Self)
    }

    /// Begins TLS over `stream` with `host`.
    pub(crate) async fn over(&self, stream: TcpStream, host: &str) -> io::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        self.0.connect(name, stream).await
    }
}

/// The provider is named, so a program may have another one as its default.
fn connector(files: &TlsFiles) -> Result<TlsConnector, StoreError> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| trouble::config("TLS could not be set up").with_source(error))?
        .with_root_certificates(roots(files)?);
    let config = match (&files.cert, &files.key) {
        (Some(cert), Some(key)) => {
            let chain = certificates(cert)?;
            let key = PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|error| {
                trouble::config(format!("{} holds no private key", key.display())).with_source(error)
            })?;
            builder.with_client_auth_cert(chain, key).map_err(|error| {
                trouble::config("the client's certificate and key do not belong together").with_source(error)
            })?
        }
        (None, None) => builder.with_no_client_auth(),
        _ => return Err(trouble::config("a client certificate needs both options, cert= and key=")),
    };
    Ok(TlsConnector::from(Arc::new(config)))
}

fn roots(files: &TlsFiles) -> Result<RootCertStore, StoreError> {
    let mut roots = RootCertStore::empty();
    if let Some(ca) = &files.ca {
        for certificate in certificates(ca)? {
            roots.add(certificate).map_err(|error| {
                trouble::config(format!("{} holds a broken certificate", ca.display())).with_source(error)
            })?;
        }
    } else {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    }
    if roots.is_empty() {
        return Err(trouble::config("no certificates to trust were found; name a file of them with ca="));
    }
    Ok(roots)
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, StoreError> {
    let wrong =
        |error| trouble::config(format!("{} holds no certificates", file.display())).with_source(error);
    CertificateDer::pem_slice_iter(&read(file)?).collect::<Result<_, _>>().map_err(wrong)
}

fn read(file: &Path) -> Result<Vec<u8>, StoreError> {
    fs::read(file).map_err(|error| {
        trouble::config(format!("{} could not be read; check path and rights", file.display()))
            .with_source(error)
    })
}
