//! The server as its clients see it: raw requests on real connections.

mod api;
mod client;
mod events;
mod hostile;
mod idempotency;
mod limits;
mod operators;
mod outages;
mod stores;
mod world;
