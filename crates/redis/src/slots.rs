//! What the nodes of a cluster say about who keeps which slot, and which of them to believe.

use std::collections::HashMap;

use lockkeeper_core::{StoreError, StoreErrorKind};
use redis::Value;

use crate::{layout::SLOTS, settings::Address, trouble};

/// What one node says.
pub(crate) struct View {
    /// Slots from, to, and their master.
    pub(crate) ranges: Vec<(usize, usize, Address)>,
    /// All nodes that it names, replicas as well.
    pub(crate) nodes: Vec<Address>,
    /// Whether it sees a cluster that works.
    works: bool,
    /// The newest epoch it knows of: each change of a master has one.
    epoch: u64,
}

impl View {
    /// Reads the answers to `CLUSTER SLOTS` and `CLUSTER INFO` of the node at `from`.
    pub(crate) fn read(from: &Address, slots: &Value, info: Option<&str>) -> Result<Self, StoreError> {
        let Value::Array(told) = slots else { return Err(nonsense()) };
        if told.is_empty() {
            return Err(StoreError::new(
                StoreErrorKind::Unreachable,
                "the cluster has no slots yet; make it with `redis-cli --cluster create`",
            ));
        }
        let (mut ranges, mut nodes) = (Vec::new(), Vec::new());
        for range in told {
            let Value::Array(range) = range else { return Err(nonsense()) };
            let [first, last, master, replicas @ ..] = &range[..] else { return Err(nonsense()) };
            let (first, last) = (number(first)?, number(last)?);
            let master = node(from, master)?;
            if first > last || last >= SLOTS {
                return Err(nonsense());
            }
            nodes.push(master.clone());
            nodes.extend(replicas.iter().filter_map(|replica| node(from, replica).ok()));
            ranges.push((first, last, master));
        }
        ranges.sort_unstable_by_key(|(first, ..)| *first);
        let fact = |name: &str| {
            let line =
                info?.lines().find_map(|line| line.trim_end().strip_prefix(name)?.strip_prefix(':'))?;
            Some(line.to_owned())
        };
        // Who may not see it takes every node to be as good as the others.
        let works = fact("cluster_state").is_none_or(|state| state == "ok");
        let epoch = fact("cluster_current_epoch").and_then(|epoch| epoch.parse().ok()).unwrap_or(0);
        Ok(Self { ranges, nodes, works, epoch })
    }
}

/// The view to believe: of a node that sees a cluster that works, with the newest epoch, and shared by most. A node that
/// was cut off, or removed, goes on telling what was so before.
pub(crate) fn believed(views: Vec<View>) -> Option<View> {
    let mut shared: HashMap<&[(usize, usize, Address)], usize> = HashMap::new();
    for view in &views {
        *shared.entry(&view.ranges).or_default() += 1;
    }
    let ranks: Vec<_> = views.iter().map(|view| (view.works, view.epoch, shared[&view.ranges[..]])).collect();
    let best = ranks.iter().max()?;
    let place = ranks.iter().position(|rank| rank == best)?;
    views.into_iter().nth(place)
}

fn nonsense() -> StoreError {
    trouble::nonsense("slots")
}

fn number(value: &Value) -> Result<usize, StoreError> {
    match value {
        Value::Int(number) => usize::try_from(*number).map_err(|_| nonsense()),
        _ => Err(nonsense()),
    }
}

fn node(from: &Address, told: &Value) -> Result<Address, StoreError> {
    let Value::Array(told) = told else { return Err(nonsense()) };
    let [host, port, ..] = &told[..] else { return Err(nonsense()) };
    let host = match host {
        Value::BulkString(host) => String::from_utf8_lossy(host).into_owned(),
        _ => String::new(),
    };
    let port = u16::try_from(number(port)?).map_err(|_| nonsense())?;
    at_host(from, &host, port).ok_or_else(nonsense)
}

/// The place that a node names. One without a host is on the host that was asked.
pub(crate) fn at_host(asked: &Address, host: &str, port: u16) -> Option<Address> {
    match (host, asked) {
        // The first is what Redis says, the second what it says in lists.
        ("" | "?", Address::Tcp(host, _)) => Some(Address::Tcp(host.clone(), port)),
        ("" | "?", Address::Unix(_)) => None,
        (host, _) => Some(Address::Tcp(host.into(), port)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(host: &str) -> Address {
        Address::Tcp(host.into(), 6379)
    }

    fn view(master: &str, works: bool, epoch: u64) -> View {
        View { ranges: vec![(0, SLOTS - 1, address(master))], nodes: Vec::new(), works, epoch }
    }

    fn master_of(views: Vec<View>) -> Address {
        believed(views).expect("a view").ranges.remove(0).2
    }

    #[test]
    fn the_newest_view_of_a_working_cluster_is_believed() {
        assert_eq!(
            master_of(vec![view("old", true, 6), view("new", true, 7)]),
            address("new"),
            "it lags behind"
        );
        let alone = vec![view("old", false, 9), view("new", true, 7)];
        assert_eq!(master_of(alone), address("new"), "who is cut off may call elections in vain");
        let unknown = vec![view("old", true, 0), view("new", true, 0), view("new", true, 0)];
        assert_eq!(master_of(unknown), address("new"), "most say so");
        assert!(believed(Vec::new()).is_none());
    }

    #[test]
    fn a_node_without_a_host_is_where_it_was_asked() {
        let text = |text: &str| Value::BulkString(text.into());
        for host in [Value::Nil, text(""), text("?")] {
            let range = |first, last, port| {
                let master = Value::Array(vec![host.clone(), Value::Int(port), text("id")]);
                Value::Array(vec![Value::Int(first), Value::Int(last), master])
            };
            let slots = Value::Array(vec![range(100, 16383, 7001), range(0, 99, 7000)]);
            let view = View::read(&address("here"), &slots, None).expect("a view");
            let place = |port| Address::Tcp("here".into(), port);
            assert_eq!(view.ranges, [(0, 99, place(7000)), (100, 16383, place(7001))]);
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let range = |range: Vec<Value>| Value::Array(vec![Value::Array(range)]);
        let node = || Value::Array(vec![Value::BulkString("a".into()), Value::Int(1)]);
        for slots in [
            Value::Nil,
            Value::Array(Vec::new()),
            range(vec![Value::Int(0), Value::Int(16384), node()]),
            range(vec![Value::Int(9), Value::Int(8), node()]),
            range(vec![Value::Int(0), Value::Int(1)]),
        ] {
            assert!(View::read(&address("here"), &slots, None).is_err(), "{slots:?}");
        }
    }
}
