//! The command driven as a person or a script would: real processes on real SQLite files.

mod codes;
mod crowd;
mod doctor;
mod documentation;
mod endings;
mod environment;
#[cfg(feature = "full")]
mod guardians;
mod leases;
mod operators;
#[cfg(feature = "redis")]
mod outages;
#[cfg(feature = "serve")]
mod prometheus;
mod pty;
#[cfg(feature = "quorum")]
mod quorum;
mod schema;
#[cfg(feature = "serve")]
mod serve;
#[cfg(feature = "full")]
mod server;
mod signals;
mod stores;
mod terminal;
mod world;
