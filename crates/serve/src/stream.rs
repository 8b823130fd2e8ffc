//! One connection's bytes: plain or TLS, over TCP or a socket of the file system.
//!
//! A client that does not read its answers is given up after a while, and a flush tells that a grant was delivered.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};

use crate::delivery::Delivery;

/// What a connection reads from and writes to.
pub(crate) trait Bytes: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Bytes for T {}

/// The bytes of a connection.
pub(crate) struct Stream<T> {
    bytes: T,
    delivery: Arc<Delivery>,
    patience: Duration,
    /// Since when the client does not read.
    stuck: Option<Pin<Box<Sleep>>>,
}

impl<T: Bytes> Stream<T> {
    pub(crate) fn new(bytes: T, delivery: Arc<Delivery>, patience: Duration) -> Self {
        Self { bytes, delivery, patience, stuck: None }
    }

    /// Passes an outcome on; fails if the client has not read for too long.
    fn unstick<R>(&mut self, context: &mut Context<'_>, outcome: Poll<io::Result<R>>) -> Poll<io::Result<R>> {
        if outcome.is_ready() {
            self.stuck = None;
            return outcome;
        }
        let patience = self.patience;
        let stuck = self.stuck.get_or_insert_with(|| Box::pin(sleep(patience)));
        ready!(stuck.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read")))
    }
}

impl<T: Bytes> AsyncRead for Stream<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.bytes).poll_read(context, buffer)
    }
}

impl<T: Bytes> AsyncWrite for Stream<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.bytes).poll_write(context, buffer);
        self.unstick(context, outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.bytes).poll_write_vectored(context, buffers);
        self.unstick(context, outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.bytes.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.bytes).poll_flush(context);
        let outcome = ready!(self.unstick(context, outcome));
        if outcome.is_ok() {
            self.delivery.flushed();
        }
        Poll::Ready(outcome)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.bytes).poll_shutdown(context);
        self.unstick(context, outcome)
    }
}
