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
mod pty;
mod signals;
mod stores;
mod terminal;
mod world;
