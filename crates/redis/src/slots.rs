//! Asks the nodes of a cluster which of them keeps which slot, and decides which answer to believe.

use std::{collections::HashMap, sync::Arc, time::Duration};

use lockkeeper_core::{StoreError, StoreErrorKind};
use redis::{Pipeline, Value};

use crate::{
    address::Address,
    layout::SLOTS,
    opener::{Opener, checked},
    trouble,
};

/// Slots that one master keeps, with the first and the last.
#[derive(PartialEq, Eq, Hash, Debug)]
pub(crate) struct SlotRange {
    pub(crate) first: usize,
    pub(crate) last: usize,
    pub(crate) master: Address,
}

/// The view of one node.
pub(crate) struct View {
    pub(crate) ranges: Vec<SlotRange>,
    /// All nodes that it names, with replicas.
    pub(crate) nodes: Vec<Address>,
    /// Whether the cluster works, in its view.
    works: bool,
    /// The newest epoch that it knows: each change of a master has one.
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
            ranges.push(SlotRange { first, last, master });
        }
        ranges.sort_unstable_by_key(|range| range.first);
        let fact =
            |name: &str| info?.lines().find_map(|line| line.trim_end().strip_prefix(name)?.strip_prefix(':'));
        // For a user that may not see it, all nodes are equal.
        let works = fact("cluster_state").is_none_or(|state| state == "ok");
        let epoch = fact("cluster_current_epoch").and_then(|epoch| epoch.parse().ok()).unwrap_or(0);
        Ok(Self { ranges, nodes, works, epoch })
    }
}

/// Asks one node, on a connection of its own: it may be closed early, and must break no request.
pub(crate) async fn ask(opener: Arc<Opener>, node: Address, limit: Duration) -> Result<View, StoreError> {
    let mut open = opener.for_requests(&node, None).await?;
    let mut questions = Pipeline::with_capacity(2);
    questions.cmd("CLUSTER").arg("SLOTS");
    questions.cmd("CLUSTER").arg("INFO");
    let answers = tokio::time::timeout(limit, open.connection.send_packed_commands(&questions, 0, 2)).await;
    drop(open);
    let address = node.to_string();
    let answers = answers.map_err(|_| trouble::too_late(&address))?;
    let answers = answers.map_err(|error| trouble::unanswered(&address, error))?;
    let [slots, info] = <[Value; 2]>::try_from(answers).map_err(|_| nonsense())?;
    let slots = checked(slots).map_err(|error| trouble::refused(&error))?;
    let info = match info {
        Value::BulkString(text) => Some(String::from_utf8_lossy(&text).into_owned()),
        Value::VerbatimString { text, .. } => Some(text),
        // This user may not see it.
        _ => None,
    };
    View::read(&node, &slots, info.as_deref())
}

/// The view to believe: of a cluster that works, with the newest epoch, and shared by most. A node that was cut off or
/// removed goes on with its old view.
pub(crate) fn believed(views: Vec<View>) -> Option<View> {
    let mut shared: HashMap<&[SlotRange], usize> = HashMap::new();
    for view in &views {
        *shared.entry(&view.ranges).or_default() += 1;
    }
    let ranks: Vec<_> = views.iter().map(|view| (view.works, view.epoch, shared[&view.ranges[..]])).collect();
    let best = ranks.iter().max()?;
    let index = ranks.iter().position(|rank| rank == best)?;
    views.into_iter().nth(index)
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
    from.of_node(&host, port).ok_or_else(nonsense)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(host: &str) -> Address {
        Address::Tcp(host.into(), 6379)
    }

    fn view(master: &str, works: bool, epoch: u64) -> View {
        let range = SlotRange { first: 0, last: SLOTS - 1, master: address(master) };
        View { ranges: vec![range], nodes: Vec::new(), works, epoch }
    }

    fn master_of(views: Vec<View>) -> Address {
        believed(views).expect("a view").ranges.remove(0).master
    }

    #[test]
    fn the_newest_view_of_a_working_cluster_is_believed() {
        assert_eq!(
            master_of(vec![view("old", true, 6), view("new", true, 7)]),
            address("new"),
            "the other lags behind"
        );
        let alone = vec![view("old", false, 9), view("new", true, 7)];
        assert_eq!(master_of(alone), address("new"), "a node that is cut off may begin elections in vain");
        let unknown = vec![view("old", true, 0), view("new", true, 0), view("new", true, 0)];
        assert_eq!(master_of(unknown), address("new"), "most say so");
        assert!(believed(Vec::new()).is_none());
    }

    #[test]
    fn a_node_without_a_host_is_on_the_host_that_was_asked() {
        let text = |text: &str| Value::BulkString(text.into());
        for host in [Value::Nil, text(""), text("?")] {
            let range = |first, last, port| {
                let master = Value::Array(vec![host.clone(), Value::Int(port), text("id")]);
                Value::Array(vec![Value::Int(first), Value::Int(last), master])
            };
            let slots = Value::Array(vec![range(100, 16383, 7001), range(0, 99, 7000)]);
            let view = View::read(&address("here"), &slots, None).expect("a view");
            let range =
                |first, last, port| SlotRange { first, last, master: Address::Tcp("here".into(), port) };
            assert_eq!(view.ranges, [range(0, 99, 7000), range(100, 16383, 7001)]);
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
