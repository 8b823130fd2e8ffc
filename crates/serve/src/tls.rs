//! TLS of the server: certificate and key from files, read again when they change.

use std::{
    fs,
    path::Path,
    sync::{Arc, RwLock},
};

use lockkeeper::support::sentence;
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use tokio_rustls::TlsAcceptor;

use crate::{error::ServeError, settings::TlsFiles};

/// The acceptor of connections, with the present certificate, and the files that it is read from.
pub(crate) struct Tls {
    files: TlsFiles,
    acceptor: RwLock<TlsAcceptor>,
}

impl Tls {
    pub(crate) fn new(files: TlsFiles) -> Result<Self, ServeError> {
        let acceptor = RwLock::new(acceptor(&files)?);
        Ok(Self { files, acceptor })
    }

    /// Reads the files anew. If they cannot be used, the certificate of before stays.
    pub(crate) fn load(&self) -> Result<(), ServeError> {
        let acceptor = acceptor(&self.files)?;
        *self.acceptor.write().unwrap_or_else(std::sync::PoisonError::into_inner) = acceptor;
        Ok(())
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        self.acceptor.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }
}

fn acceptor(files: &TlsFiles) -> Result<TlsAcceptor, ServeError> {
    let broken = |file: &Path, what: &str, error: &dyn std::error::Error| {
        ServeError::usage(format!("{} holds no {what}: {}", file.display(), sentence::of(error)))
    };
    let chain = CertificateDer::pem_slice_iter(&read(&files.cert)?)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| broken(&files.cert, "certificates", &error))?;
    if chain.is_empty() {
        return Err(ServeError::usage(format!("{} holds no certificates", files.cert.display())));
    }
    let key = PrivateKeyDer::from_pem_slice(&read(&files.key)?)
        .map_err(|error| broken(&files.key, "private key", &error))?;
    // The provider is named, so a program may have another one as its default.
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut settings = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| ServeError::internal(format!("TLS could not be set up: {error}")))?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(|error| {
            ServeError::usage(format!("certificate and key do not belong together: {}", sentence::of(&error)))
        })?;
    settings.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(settings)))
}

fn read(file: &Path) -> Result<Vec<u8>, ServeError> {
    fs::read(file).map_err(|error| {
        ServeError::usage(format!("{} could not be read; check path and rights: {error}", file.display()))
    })
}
