//! Refuses TLS in a build without the feature `tls`.

use lockkeeper_core::StoreError;
use mysql_async::OptsBuilder;

use crate::{settings::TlsFiles, trouble::config};

/// Returns the error that names the missing feature.
pub(crate) fn secure(_driver: OptsBuilder, _files: &TlsFiles) -> Result<OptsBuilder, StoreError> {
    Err(config(
        "this build has no TLS for MySQL; add the feature `mysql-tls` of the crate lockkeeper in Cargo.toml, or write \
         ssl-mode=disabled",
    ))
}
