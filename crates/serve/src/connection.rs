//! One connection: its limits and its requests.

use std::{convert::Infallible, sync::Arc, time::Instant};

use axum::{
    Router,
    body::Body,
    http::Request,
    response::{IntoResponse, Response},
};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tower_service::Service;

use crate::{
    app::App,
    connections::{Entered, Peer},
    gate::{self, Head},
    headers::protect,
    listener::Accepted,
    metrics,
    stream::{Bytes, Stream},
    tls::Tls,
};

/// The most bytes of the head of a request.
const LARGEST_HEAD: usize = 16 * 1024;
/// The most headers of a request.
const MOST_HEADERS: usize = 64;

/// Serves a connection to its end.
pub(crate) async fn serve(
    app: Arc<App>,
    router: Router,
    entered: Entered,
    accepted: Accepted,
    tls: Option<Arc<Tls>>,
) {
    let patience = app.settings.limits.patience;
    let peer = entered.peer.clone();
    let work = async {
        match (accepted, tls) {
            (Accepted::Tcp(stream, _), None) => requests(app, router, &peer, stream).await,
            (Accepted::Unix(stream), None) => requests(app, router, &peer, stream).await,
            (Accepted::Tcp(stream, _), Some(tls)) => {
                // A client that does not finish the handshake is dropped, and so is one that fails it.
                if let Ok(Ok(stream)) = tokio::time::timeout(patience, tls.acceptor().accept(stream)).await {
                    requests(app, router, &peer, stream).await;
                }
            }
            (Accepted::Unix(stream), Some(tls)) => {
                if let Ok(Ok(stream)) = tokio::time::timeout(patience, tls.acceptor().accept(stream)).await {
                    requests(app, router, &peer, stream).await;
                }
            }
        }
    };
    tokio::select! {
        () = work => {}
        () = entered.peer.closed() => {}
    }
}

async fn requests(app: Arc<App>, router: Router, peer: &Arc<Peer>, stream: impl Bytes) {
    let patience = app.settings.limits.patience;
    let stream = TokioIo::new(Stream::new(stream, peer.clone(), patience));
    let service = service_fn(|request: Request<Incoming>| {
        let (app, router, peer) = (app.clone(), router.clone(), peer.clone());
        async move { Ok::<_, Infallible>(answer(&app, router, &peer, request.map(Body::new)).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(patience)
        .max_headers(MOST_HEADERS)
        .max_buf_size(LARGEST_HEAD)
        .serve_connection(stream, service);
    tokio::pin!(connection);
    // Clients come and go as they like, so the way in which a connection ended is of no interest.
    tokio::select! {
        _ = connection.as_mut() => {}
        () = app.draining() => {
            connection.as_mut().graceful_shutdown();
            let _ = connection.await;
        }
    }
}

/// Answers one request.
async fn answer(
    app: &Arc<App>,
    mut router: Router,
    peer: &Arc<Peer>,
    mut request: Request<Body>,
) -> Response {
    let started = Instant::now();
    let path = metrics::label(request.uri().path());
    let head = Head { method: request.method(), uri: request.uri(), headers: request.headers() };
    // A browser that is told to always use TLS with a name of loopback would do so with all servers of this machine.
    let local = gate::is_called_local(&head);
    let mut response = match gate::admit(app, peer, &head) {
        Ok(caller) => {
            if let Some(caller) = caller {
                request.extensions_mut().insert(caller);
            }
            match router.call(request).await {
                Ok(response) => response,
                Err(never) => match never {},
            }
        }
        Err(problem) => problem.into_response(),
    };
    let always_tls = app.settings.tls.is_some() && !local;
    metrics::answered(path, response.status().as_u16(), started.elapsed());
    protect(response.headers_mut(), always_tls);
    response
}
