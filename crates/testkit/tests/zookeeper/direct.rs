//! Requests to the store itself, without the engine: claims that come too late, and one request of a group that fails.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use lockkeeper_core::{
    Capacity, ContenderId, KeeperId, Name, Units,
    clock::Clock,
    store::{
        Answer, Attachment, Claim, Context, Details, Kind, Leave, Left, ProcessInfo, Request, Store,
        StoreTime, Verdict, WakeSink,
    },
};
use lockkeeper_testkit::proxy::Proxy;

use crate::stage::{Stage, nodes};

/// Sends requests to a store directly.
struct Asker {
    store: Arc<dyn Store>,
    keeper: KeeperId,
}

impl Asker {
    async fn connect(address: SocketAddr, request_limit: Duration) -> Self {
        let keeper = KeeperId::random();
        let context = Context {
            keeper,
            wakes: WakeSink::new(|_| {}),
            background: tokio::runtime::Handle::current(),
            clock: Clock::boot(),
            request_limit,
        };
        let url = format!("zookeeper://{address}?session=10s&tick=200ms");
        let connector = lockkeeper::url::connector(&url).expect("a good URL");
        Self { store: connector.connect(context).await.expect("connected"), keeper }
    }

    fn claim(&self, name: &str, seq: u64) -> Claim {
        let process = Arc::new(ProcessInfo { host: "here".into(), pid: 1, program: "test".into() });
        Claim {
            name: Name::new(name).expect("a name"),
            contender: ContenderId { keeper: self.keeper, seq },
            units: Units::All,
            capacity: Capacity::All,
            lease: Duration::from_secs(30),
            queue: true,
            attachment: Attachment::Process,
            renewed: true,
            at_least: 0,
            min_hold: Duration::ZERO,
            not_after: StoreTime(u64::MAX),
            stamp: 0,
            again: false,
            details: Details { kind: Kind::Mutex, process, label: None, value: None },
        }
    }

    async fn ask(&self, group: &[Request]) -> Vec<Answer> {
        self.store.apply(group).await.expect("answered").each
    }
}

/// A try-claim lists the queue first. If that takes until the claim is too late, no node is made (I9).
#[tokio::test(flavor = "multi_thread")]
async fn i9_a_listing_that_takes_too_long_makes_no_node() {
    let stage = Stage::single(Duration::from_secs(10));
    let proxy = Proxy::start(stage.address()).expect("started");
    let asker = Asker::connect(proxy.address(), Duration::from_secs(30)).await;
    let client = stage.client().await;
    proxy.delay(Duration::from_millis(150));
    let now = asker.store.apply(&[]).await.expect("answered").now;
    let not_after = StoreTime(now.0 + 100_000);
    let claim = Claim { queue: false, not_after, ..asker.claim("stock", 1) };
    let answers = asker.ask(&[Request::Claim(claim)]).await;
    assert!(matches!(&answers[..], [Answer::Claim(Verdict::Stale)]), "{answers:?}");
    assert_eq!(nodes(&client, "stock").await.len(), 0);
    asker.store.close().await;
}

/// One lease has a session of its own, whose server falls silent. That costs no other request of the group its answer. The
/// keeper's own session does for the lease what it can.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_session_costs_no_other_of_its_group() {
    let stage = Stage::ensemble(Duration::from_secs(10));
    let servers = stage.servers.nodes();
    let proxy = Proxy::start(stage.address()).expect("started");
    let asker = Asker::connect(proxy.address(), Duration::from_secs(2)).await;
    let other = servers[1..].iter().find(|server| server.mode().as_deref() == Some("follower")).expect("one");
    proxy.lead_to(other.address());
    let lonely = Claim { attachment: Attachment::Detachable, ..asker.claim("lonely", 1) };
    let answers = asker.ask(&[Request::Claim(lonely.clone())]).await;
    assert!(matches!(&answers[..], [Answer::Claim(Verdict::Granted(_))]), "{answers:?}");
    proxy.lead_to(servers[0].address());
    other.process().pause();
    let again = Request::Claim(Claim { again: true, ..lonely });
    let answers = asker.store.apply(&[again, Request::Claim(asker.claim("stock", 2))]).await;
    let (name, contender) =
        (Name::new("lonely").expect("a name"), ContenderId { keeper: asker.keeper, seq: 1 });
    let leave = Leave { name, contender, tombstone_until: None, hold_at_least: Duration::from_secs(20) };
    let left = asker.store.apply(&[Request::Leave(leave), Request::Claim(asker.claim("other", 3))]).await;
    other.process().resume();
    let answers = answers.expect("answered").each;
    let granted = |answer: &Answer| matches!(answer, Answer::Claim(Verdict::Granted(_)));
    assert!(answers.len() == 2 && answers.iter().all(granted), "{answers:?}");
    let left = left.expect("answered").each;
    assert!(matches!(&left[..], [Answer::Leave(Left::Released), other] if granted(other)), "{left:?}");
    asker.store.close().await;
}
