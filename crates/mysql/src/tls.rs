//! Gives the driver the certificates to trust and to show. Files are read once, when the store is opened.

use std::{fs, path::Path, sync::Arc};

use lockkeeper_core::StoreError;
use mysql_async::{ClientIdentity, OptsBuilder, SslOpts};
use rustls::crypto::{CryptoProvider, aws_lc_rs};

use crate::{settings::TlsFiles, trouble::config};

/// The driver with TLS.
pub(crate) fn secure(driver: OptsBuilder, files: &TlsFiles) -> Result<OptsBuilder, StoreError> {
    // The driver uses the default of the process. A program that has another default keeps it.
    if CryptoProvider::get_default().is_none() {
        // Another thread may have set it just now.
        drop::<Result<(), Arc<CryptoProvider>>>(aws_lc_rs::default_provider().install_default());
    }
    let trusted = match &files.ca {
        Some(file) => vec![read(file)?.into()],
        None => {
            let found = rustls_native_certs::load_native_certs().certs;
            found.into_iter().map(|certificate| certificate.to_vec().into()).collect()
        }
    };
    if trusted.is_empty() {
        return Err(config("no certificates to trust were found; name a file of them with ssl-ca="));
    }
    let identity = match (&files.cert, &files.key) {
        (Some(cert), Some(key)) => Some(ClientIdentity::new(read(cert)?.into(), read(key)?.into())),
        (None, None) => None,
        _ => return Err(config("a client certificate needs both options, ssl-cert= and ssl-key=")),
    };
    let options = SslOpts::default()
        // The certificates of the system or of the file, and no others.
        .with_disable_built_in_roots(true)
        .with_root_certs(trusted)
        .with_client_identity(identity);
    Ok(driver.ssl_opts(options))
}

fn read(file: &Path) -> Result<Vec<u8>, StoreError> {
    fs::read(file).map_err(|error| {
        config(format!("{} could not be read; check path and rights", file.display())).with_source(error)
    })
}
