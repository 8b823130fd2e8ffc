//! Stands in for `tls.rs` in builds without TLS: an error that says how to get it.

use std::io;

use lockkeeper_core::StoreError;
use tokio::net::TcpStream;

use crate::{settings::TlsFiles, trouble};

/// No value of this exists.
pub(crate) enum Tls {}

impl Tls {
    pub(crate) fn new(_: &TlsFiles) -> Result<Self, StoreError> {
        Err(trouble::config(
            "rediss: URLs need TLS, which this build does not have; enable the feature redis-tls of the crate lockkeeper, \
             or tls of lockkeeper-redis",
        ))
    }

    pub(crate) async fn over(&self, _: TcpStream, _: &str) -> io::Result<TcpStream> {
        match *self {}
    }
}
