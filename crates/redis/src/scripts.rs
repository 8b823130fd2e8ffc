//! The scripts, and how they are called: by digest, after they were loaded where a server does not know them yet.

use std::sync::LazyLock;

use lockkeeper_core::Name;
use redis::Cmd;

use crate::layout::{Keys, slot};

/// A script and its digest.
pub(crate) struct Script {
    text: &'static str,
    digest: String,
}

impl Script {
    fn new(text: &'static str) -> Self {
        Self { text, digest: redis::Script::new(text).get_hash().to_owned() }
    }

    /// Has the server keep it. One that came with `EVAL` is forgotten by servers from 7.4 on when there are many such.
    pub(crate) fn load(&self) -> Cmd {
        let mut command = redis::cmd("SCRIPT");
        command.arg("LOAD").arg(self.text);
        command
    }
}

macro_rules! script {
    ($($part:literal),+) => {
        LazyLock::new(|| Script::new(concat!($(include_str!(concat!("lua/", $part))),+)))
    };
}

/// What transitions of a resource begin with.
macro_rules! transition {
    ($part:literal) => {
        script!("prelude.lua", "numbers.lua", "publish_grant.lua", "resource.lua", $part)
    };
}

pub(crate) static APPLY: LazyLock<Script> = script!(
    "prelude.lua",
    "uncontended.lua",
    "numbers.lua",
    "publish_grant.lua",
    "contended.lua",
    "resource.lua",
    "apply.lua"
);
pub(crate) static RENEW: LazyLock<Script> = transition!("renew.lua");
pub(crate) static EVICT: LazyLock<Script> = transition!("evict.lua");
pub(crate) static CHANGES: LazyLock<Script> = transition!("changes.lua");
pub(crate) static COUNT: LazyLock<Script> = transition!("count.lua");
pub(crate) static INSPECT: LazyLock<Script> = script!("inspect.lua");
pub(crate) static FENCE: LazyLock<Script> = script!("fence.lua");

/// Appends keys and arguments to a command; the number is the nonce.
type Fill<'a> = dyn Fn(&mut Cmd, u64) + Send + Sync + 'a;

/// One call of a script.
pub(crate) struct Call<'a> {
    pub(crate) script: &'static Script,
    /// Which slot it belongs to, in a cluster.
    pub(crate) slot: usize,
    /// How many of the arguments are keys.
    pub(crate) keys: usize,
    /// Appends keys, the nonce it is given, and arguments.
    pub(crate) fill: Box<Fill<'a>>,
}

impl<'a> Call<'a> {
    /// A call that is about `name`, with so many keys.
    pub(crate) fn new(
        script: &'static Script,
        of: &Keys,
        name: &Name,
        keys: usize,
        fill: impl Fn(&mut Cmd, u64) + Send + Sync + 'a,
    ) -> Self {
        // Only a cluster has slots.
        let slot = if of.is_sharded() { slot(&of.resource(name)) } else { 0 };
        Self { script, slot, keys, fill: Box::new(fill) }
    }

    /// The command.
    pub(crate) fn command(&self, nonce: u64) -> Cmd {
        let mut command = Cmd::with_capacity(8 + self.keys * 6, 128 + self.keys * 256);
        command.arg("EVALSHA").arg(&self.script.digest).arg(self.keys);
        (self.fill)(&mut command, nonce);
        command
    }
}
