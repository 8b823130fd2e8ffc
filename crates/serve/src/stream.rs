//! One connection's bytes: plain or TLS, over TCP or a socket of the file system.
//!
//! A client that does not read its answers is given up after a while. A flush reports that grants were delivered.
//! Answers that hyper gives by itself are replaced.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::BytesMut;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};

use crate::{connections::Peer, metrics, not_http};

/// The most bytes that are read ahead, to notice that a client hangs up behind bytes that nobody wants yet.
const AHEAD: usize = 16 * 1024;

/// The transport that a connection reads from and writes to.
pub(crate) trait Bytes: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Bytes for T {}

/// The bytes of a connection.
pub(crate) struct Stream<T> {
    bytes: T,
    peer: Arc<Peer>,
    patience: Duration,
    ahead: Ahead,
    /// The rest of an answer that is written in the place of hyper's own.
    instead: BytesMut,
    /// Ends when the client has not read for too long; `None` while it reads.
    stuck: Option<Pin<Box<Sleep>>>,
}

impl<T: Bytes> Stream<T> {
    pub(crate) fn new(bytes: T, peer: Arc<Peer>, patience: Duration) -> Self {
        Self { bytes, peer, patience, ahead: Ahead::default(), instead: BytesMut::new(), stuck: None }
    }

    /// Reads ahead while a request is worked on. Fails if the client has hung up. The connection does so itself only if it
    /// has no bytes behind the request yet.
    fn notice_end(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        while self.peer.is_busy() && !self.ahead.ended && self.ahead.bytes.len() < AHEAD {
            let mut space = [0; 1024];
            let mut buffer = ReadBuf::new(&mut space);
            match Pin::new(&mut self.bytes).poll_read(context, &mut buffer) {
                Poll::Pending => break,
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Ready(Ok(())) if buffer.filled().is_empty() => self.ahead.ended = true,
                Poll::Ready(Ok(())) => self.ahead.bytes.extend_from_slice(buffer.filled()),
            }
        }
        if self.ahead.ended && self.peer.is_busy() {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the client has hung up"));
        }
        Ok(())
    }

    /// Takes an answer of hyper's own, to write another in its place. hyper closes the connection after it.
    fn replace(&mut self, written: &[u8]) -> bool {
        let Some(instead) = not_http::instead_of(written) else { return false };
        metrics::answered(metrics::label(""), instead.status, Duration::ZERO);
        self.instead.extend_from_slice(&instead.bytes);
        true
    }

    /// Writes the rest of an answer that is written in the place of hyper's own.
    fn write_instead(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.instead.is_empty() {
            let outcome = Pin::new(&mut self.bytes).poll_write(context, &self.instead);
            match ready!(self.unstick(context, outcome))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => drop(self.instead.split_to(count)),
            }
        }
        Poll::Ready(Ok(()))
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

/// Bytes that were read before anybody asked for them.
#[derive(Default)]
struct Ahead {
    bytes: BytesMut,
    /// Whether nothing comes behind these.
    ended: bool,
}

impl<T: Bytes> AsyncRead for Stream<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Ahead { bytes, ended } = &mut self.ahead;
        if !bytes.is_empty() || *ended {
            let some = bytes.split_to(bytes.len().min(buffer.remaining()));
            buffer.put_slice(&some);
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.bytes).poll_read(context, buffer)
    }
}

impl<T: Bytes> AsyncWrite for Stream<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.write_instead(context))?;
        if self.replace(buffer) {
            return Poll::Ready(Ok(buffer.len()));
        }
        let outcome = Pin::new(&mut self.bytes).poll_write(context, buffer);
        self.unstick(context, outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.write_instead(context))?;
        if let [buffer] = buffers
            && self.replace(buffer)
        {
            return Poll::Ready(Ok(buffer.len()));
        }
        let outcome = Pin::new(&mut self.bytes).poll_write_vectored(context, buffers);
        self.unstick(context, outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.bytes.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.write_instead(context))?;
        let outcome = Pin::new(&mut self.bytes).poll_flush(context);
        let outcome = ready!(self.unstick(context, outcome));
        if outcome.is_ok() {
            self.peer.delivery.flushed();
        }
        Poll::Ready(outcome.and_then(|()| self.notice_end(context)))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.write_instead(context))?;
        let outcome = Pin::new(&mut self.bytes).poll_shutdown(context);
        self.unstick(context, outcome)
    }
}
