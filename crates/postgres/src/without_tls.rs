//! In a build without the feature `tls`: says so.

use lockkeeper_core::StoreError;
use tokio_postgres::{CancelToken, Client, Config, Connection, Socket, tls::NoTlsStream};

use crate::{settings::TlsFiles, trouble::config};

/// Refuses.
pub(crate) async fn connect(
    _driver: &Config,
    _files: &TlsFiles,
) -> Result<(Client, Connection<Socket, NoTlsStream>), StoreError> {
    Err(refused())
}

/// Refuses.
pub(crate) async fn cancel(_session: &CancelToken, _files: &TlsFiles) -> Result<(), StoreError> {
    Err(refused())
}

fn refused() -> StoreError {
    config(
        "this build has no TLS for PostgreSQL; add the feature `postgres-tls` of the crate lockkeeper in Cargo.toml, or \
         write sslmode=disable",
    )
}
