//! In the place of TLS in a build without it: nothing, and an error that says how to get it.

use std::io;

use lockkeeper_core::StoreError;
use tokio::net::TcpStream;

use crate::{connect::Socket, settings::TlsFiles, trouble};

/// There is none.
pub(crate) enum Tls {}

impl Tls {
    pub(crate) fn new(_: &TlsFiles) -> Result<Self, StoreError> {
        Err(trouble::config(
            "rediss: URLs need TLS, which this build is without; enable the feature redis-tls of the crate lockkeeper, \
             or tls of lockkeeper-redis",
        ))
    }

    pub(crate) async fn over(&self, _: TcpStream, _: &str) -> io::Result<Box<dyn Socket>> {
        match *self {}
    }
}
