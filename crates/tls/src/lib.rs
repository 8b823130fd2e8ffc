//! TLS for stores: the certificates to trust and the certificate to show, read from PEM files.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use lockkeeper_core::{StoreError, StoreErrorKind};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use tokio_rustls::TlsConnector;

/// The files that a URL names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Files {
    /// The certificates that sign those of the servers. `None`: those of the system.
    pub ca: Option<PathBuf>,
    /// The certificate of this client.
    pub cert: Option<PathBuf>,
    /// The key of that certificate.
    pub key: Option<PathBuf>,
}

/// The names of the options in URLs, for messages.
#[derive(Clone, Copy, Debug)]
pub struct OptionNames {
    /// That of [`Files::ca`].
    pub ca: &'static str,
    /// That of [`Files::cert`].
    pub cert: &'static str,
    /// That of [`Files::key`].
    pub key: &'static str,
}

/// Returns a connector for TLS with these files. It names its provider, so a program may have another default.
///
/// # Errors
/// [`StoreErrorKind::Config`] if a file cannot be used.
pub fn connector(files: &Files, options: OptionNames) -> Result<TlsConnector, StoreError> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| config("TLS could not be set up").with_source(error))?
        .with_root_certificates(roots(files, options)?);
    let settings = match (&files.cert, &files.key) {
        (Some(cert), Some(key)) => {
            let chain = certificates(cert)?;
            let key = PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|error| {
                config(format!("{} holds no private key", key.display())).with_source(error)
            })?;
            builder.with_client_auth_cert(chain, key).map_err(|error| {
                config("the client's certificate and key do not belong together").with_source(error)
            })?
        }
        (None, None) => builder.with_no_client_auth(),
        _ => {
            let OptionNames { cert, key, .. } = options;
            return Err(config(format!("a client certificate needs both options, {cert}= and {key}=")));
        }
    };
    Ok(TlsConnector::from(Arc::new(settings)))
}

fn config(message: impl Into<String>) -> StoreError {
    StoreError::new(StoreErrorKind::Config, message)
}

fn roots(files: &Files, options: OptionNames) -> Result<RootCertStore, StoreError> {
    let mut roots = RootCertStore::empty();
    if let Some(ca) = &files.ca {
        for certificate in certificates(ca)? {
            roots.add(certificate).map_err(|error| {
                config(format!("{} holds a broken certificate", ca.display())).with_source(error)
            })?;
        }
    } else {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    }
    if roots.is_empty() {
        let message =
            format!("no certificates to trust were found; name a file of them with {}=", options.ca);
        return Err(config(message));
    }
    Ok(roots)
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, StoreError> {
    let wrong = |error| config(format!("{} holds no certificates", file.display())).with_source(error);
    CertificateDer::pem_slice_iter(&read(file)?).collect::<Result<_, _>>().map_err(wrong)
}

fn read(file: &Path) -> Result<Vec<u8>, StoreError> {
    fs::read(file).map_err(|error| {
        config(format!("{} could not be read; check path and rights", file.display())).with_source(error)
    })
}
