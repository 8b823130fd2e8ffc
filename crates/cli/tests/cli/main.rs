//! The command driven as a person or a script would: real processes on real SQLite files.

mod codes;
mod crowd;
mod documentation;
mod endings;
mod environment;
#[cfg(feature = "full")]
mod guardians;
mod leases;
mod operators;
#[cfg(feature = "redis")]
mod outages;
mod pty;
#[cfg(feature = "serve")]
mod serve;
#[cfg(feature = "full")]
mod server;
mod signals;
mod stores;
mod terminal;
mod world;
