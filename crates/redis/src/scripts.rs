//! The scripts and calls of them: by digest, so a server that does not know a script yet must load it first.

use std::sync::LazyLock;

use lockkeeper_core::Name;
use redis::Cmd;

use crate::layout::{Keys, slot};

/// A script and its digest.
pub(crate) struct Script {
    text: String,
    digest: String,
}

impl Script {
    fn new(text: impl Into<String>) -> Self {
        let text = text.into();
        let digest = redis::Script::new(&text).get_hash().to_owned();
        Self { text, digest }
    }

    /// The same script for a member of a quorum. Its last two arguments are the key of the member's record, and the tag of
    /// the record that the client knows. If the record has another tag, it is the second value of the reply, behind its tag.
    fn of_member(&self) -> Self {
        let text = &self.text;
        Self::new(format!(
            "local record, known = ARGV[#ARGV - 1], ARGV[#ARGV]\n\
             local tag = redis.pcall('GETRANGE', record, '0', '15')\n\
             local function act()\n{text}\nend\n\
             if tag == known then return act() end\n\
             record = redis.pcall('GET', record)\n\
             return {{act(), type(record) == 'string' and record or ''}}"
        ))
    }

    /// Has the server keep the script. Servers from 7.4 on forget scripts that came with `EVAL` when there are many.
    pub(crate) fn load(&self) -> Cmd {
        let mut command = redis::cmd("SCRIPT");
        command.arg("LOAD").arg(&self.text);
        command
    }
}

macro_rules! script {
    ($($part:literal),+) => {
        LazyLock::new(|| Script::new(concat!($(include_str!(concat!("lua/", $part))),+)))
    };
}

/// A script that changes a resource.
macro_rules! transition {
    ($part:literal) => {
        script!("prelude.lua", "numbers.lua", "publish_grant.lua", "resource.lua", $part)
    };
}

pub(crate) static APPLY: LazyLock<Script> = script!(
    "prelude.lua",
    "alone.lua",
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
pub(crate) static MEMBER_APPLY: LazyLock<Script> = LazyLock::new(|| APPLY.of_member());
pub(crate) static MEMBER_RENEW: LazyLock<Script> = LazyLock::new(|| RENEW.of_member());
pub(crate) static MEMBER: LazyLock<Script> = script!("member.lua");

/// Appends keys and arguments to a command; the number is the nonce.
type Fill<'a> = dyn Fn(&mut Cmd, u64) + Send + Sync + 'a;

/// One call of a script.
pub(crate) struct Call<'a> {
    pub(crate) script: &'static Script,
    /// The slot that it belongs to, in a cluster.
    pub(crate) slot: usize,
    /// How many of the arguments are keys.
    keys: usize,
    /// Appends keys, the nonce, and arguments.
    fill: Box<Fill<'a>>,
}

impl<'a> Call<'a> {
    /// A call for the resource `name`, with this number of keys.
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

    /// A call that is about no resource. Not in a cluster.
    pub(crate) fn plain(
        script: &'static Script,
        keys: usize,
        fill: impl Fn(&mut Cmd, u64) + Send + Sync + 'a,
    ) -> Self {
        Self { script, slot: 0, keys, fill: Box::new(fill) }
    }

    /// The command that makes this call.
    pub(crate) fn command(&self, nonce: u64) -> Cmd {
        let mut command = Cmd::with_capacity(8 + self.keys * 6, 128 + self.keys * 256);
        command.arg("EVALSHA").arg(&self.script.digest).arg(self.keys);
        (self.fill)(&mut command, nonce);
        command
    }
}
