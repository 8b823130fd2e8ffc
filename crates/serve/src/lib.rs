//! Locks over HTTP: the server behind `lockkeeper serve`, for programs in every language.
//!
//! The server keeps no lock itself: leases live in the store, so several servers can run behind a balancer, and one
//! that ends takes no lock with it. `docs/http.md` describes the API.
//!
//! The way of a request: `listener` and `connections` let its connection in, `connection` reads it, `gate` checks its
//! token, a file of `api` does it, and `delivery` makes sure that a grant arrives.

mod api;
mod app;
mod caller;
mod connection;
mod connections;
mod console;
mod console_feed;
mod count;
mod delivery;
mod error;
mod files;
mod gate;
mod headers;
mod idempotency;
mod listener;
mod log;
mod metrics;
mod not_http;
mod outstanding;
mod problem;
mod rate;
mod request;
mod sample;
mod sampler;
mod server;
mod settings;
mod shapes;
mod stream;
mod tls;
mod tokens;

pub use api::description;
pub use error::{ServeError, ServeErrorKind};
pub use log::Output;
pub use server::Server;
pub use settings::{Limits, Listen, Settings, TlsFiles};
pub use tokens::Role;
