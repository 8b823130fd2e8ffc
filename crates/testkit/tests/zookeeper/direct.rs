//! Requests to the store itself, without the engine: claims that come too late, one request of a group that fails, and
//! leases that another keeper takes over.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use lockkeeper_core::{
    ContenderId, KeeperId, Name, Units,
    clock::Clock,
    store::{
        Answer, Attachment, Claim, Context, Grant, Leave, Left, Renew, Renewed, Request, Store, StoreTime,
        Verdict, Wake, WakeSink,
    },
    testing,
};
use lockkeeper_testkit::proxy::Proxy;

use crate::stage::{LONG, Stage, nodes, soon};

/// Sends requests to a store directly.
struct Asker {
    store: Arc<dyn Store>,
    keeper: KeeperId,
}

impl Asker {
    async fn connect(address: SocketAddr, request_limit: Duration) -> Self {
        Self::connect_with(address, request_limit, WakeSink::new(|_| {})).await
    }

    async fn connect_with(address: SocketAddr, request_limit: Duration, wakes: WakeSink) -> Self {
        let keeper = KeeperId::random();
        let context = Context {
            keeper,
            wakes,
            background: tokio::runtime::Handle::current(),
            clock: Clock::boot(),
            request_limit,
        };
        let url = format!("zookeeper://{address}?session=10s&tick=200ms");
        let connector = lockkeeper::url::connector(&url).expect("a good URL");
        Self { store: connector.connect(context).await.expect("connected"), keeper }
    }

    fn claim(&self, name: &str, seq: u64) -> Claim {
        testing::claim(&Name::new(name).expect("a name"), ContenderId { keeper: self.keeper, seq })
    }

    /// A claim that must be granted.
    async fn granted(&self, claim: Claim) -> Grant {
        match &self.ask(&[Request::Claim(claim)]).await[..] {
            [Answer::Claim(Verdict::Granted(grant))] => *grant,
            other => panic!("{other:?}"),
        }
    }

    /// A claim that must wait.
    async fn waits(&self, claim: Claim) {
        let answers = self.ask(&[Request::Claim(claim)]).await;
        assert!(matches!(&answers[..], [Answer::Claim(Verdict::Busy { .. })]), "{answers:?}");
    }

    /// Gives back the hold of `claim`.
    async fn leave(&self, claim: &Claim) {
        let (name, contender) = (claim.name.clone(), claim.contender);
        let leave = Leave { name, contender, tombstone_until: None, hold_at_least: Duration::ZERO };
        let answers = self.ask(&[Request::Leave(leave)]).await;
        assert!(matches!(&answers[..], [Answer::Leave(Left::Released)]), "{answers:?}");
    }

    /// Renews the lease of `claim`, which any keeper may have made, and detaches it.
    async fn renew(&self, claim: &Claim, lower_to: Option<Units>) -> Grant {
        let (name, contender, lease) = (claim.name.clone(), claim.contender, Duration::from_secs(20));
        let renew = Renew { name, contender, lease, lower_to, detach: true, at_least: 0 };
        match &self.store.renew(&[renew]).await.expect("answered").each[..] {
            [Renewed::Held(grant)] => *grant,
            other => panic!("{other:?}"),
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

/// One lease has a session of its own, whose server falls silent. That costs no other request of the group its answer.
/// The keeper's own session does all that it can for the lease.
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

/// A keeper still counts a lease as its own that another keeper has taken over. When the lease would have ended, the first
/// keeper leaves the node alone.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_was_taken_over_is_not_ended_by_its_first_keeper() {
    let stage = Stage::single(Duration::from_secs(10));
    let (a, b) = (Asker::connect(stage.address(), LONG).await, Asker::connect(stage.address(), LONG).await);
    let client = stage.client().await;
    let lease = Duration::from_secs(2);
    let claim = Claim { attachment: Attachment::Detachable, lease, ..a.claim("stock", 1) };
    let number = a.granted(claim.clone()).await.number;
    assert_eq!(b.renew(&claim, None).await.number, number);
    tokio::time::sleep(lease + Duration::from_secs(1)).await;
    assert_eq!(nodes(&client, "stock").await.len(), 1, "it is another's");
    assert_eq!(b.renew(&claim, None).await.number, number);
    b.leave(&claim).await;
    a.store.close().await;
    b.store.close().await;
}

/// A reader that is taken over, and one that asks again after it was detached, are told the smallest number that holds.
#[tokio::test(flavor = "multi_thread")]
async fn i7_a_lease_that_is_taken_over_tells_the_floor() {
    let stage = Stage::single(Duration::from_secs(10));
    let (a, b) = (Asker::connect(stage.address(), LONG).await, Asker::connect(stage.address(), LONG).await);
    let reader = |seq, attachment| Claim { units: Units::ONE, attachment, ..a.claim("stock", seq) };
    let first = reader(1, Attachment::Process);
    let floor = a.granted(first.clone()).await.number;
    let (detachable, detached) = (reader(2, Attachment::Detachable), reader(3, Attachment::Detached));
    assert_eq!(a.granted(detachable.clone()).await.floor, floor);
    assert_eq!(b.renew(&detachable, None).await.floor, floor, "taken over");
    assert_eq!(a.granted(detached.clone()).await.floor, floor);
    let again = Claim { again: true, ..detached.clone() };
    assert_eq!(a.granted(again).await.floor, floor, "asked again");
    for claim in [&first, &detachable, &detached] {
        a.leave(claim).await;
    }
    a.store.close().await;
    b.store.close().await;
}

/// A writer's lease is taken over and lowered with one renewal: a reader is let in beside it.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_lowered_when_it_is_taken_over() {
    let stage = Stage::single(Duration::from_secs(10));
    let (a, b) = (Asker::connect(stage.address(), LONG).await, Asker::connect(stage.address(), LONG).await);
    let writer = Claim { attachment: Attachment::Detached, ..a.claim("stock", 1) };
    a.granted(writer.clone()).await;
    b.renew(&writer, Some(Units::ONE)).await;
    let reader = Claim { units: Units::ONE, queue: false, ..a.claim("stock", 2) };
    a.granted(reader.clone()).await;
    b.leave(&writer).await;
    a.leave(&reader).await;
    assert_eq!(nodes(&stage.client().await, "stock").await.len(), 0);
    a.store.close().await;
    b.store.close().await;
}

/// A grant of a claim that is born detached is shown as detached, also before its owner has heard of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_grant_that_is_born_detached_is_shown_so_at_once() {
    let stage = Stage::single(Duration::from_secs(10));
    let (grants, mut heard) = tokio::sync::mpsc::unbounded_channel();
    let wakes = WakeSink::new(move |wake| {
        if let Wake::Granted(_, notice) = wake {
            // After the test nobody hears it.
            let _ = grants.send(notice);
        }
    });
    let asker = Asker::connect_with(stage.address(), LONG, wakes).await;
    let (first, second) = (asker.claim("stock", 1), asker.claim("stock", 2));
    let second = Claim { attachment: Attachment::Detached, ..second };
    asker.granted(first.clone()).await;
    asker.waits(second.clone()).await;
    asker.leave(&first).await;
    let notice = soon(heard.recv()).await.expect("granted");
    assert_eq!(notice.contender, second.contender);
    let shown = asker.store.inspect(&second.name).await.expect("answered").expect("held");
    assert_eq!(shown.holders.iter().map(|holder| holder.detached).collect::<Vec<_>>(), [true], "{shown:?}");
    asker.leave(&second).await;
    asker.store.close().await;
}

/// A keeper does not hear of its grant, so the grant ends after the first lease, and with it the keeper's other waiters. A
/// reader behind them is granted when all of them are gone, and not beside one of them.
#[tokio::test(flavor = "multi_thread")]
async fn i7_a_reader_behind_a_silent_keeper_is_granted_alone() {
    const RESOURCES: u64 = 8;
    let stage = Stage::single(Duration::from_secs(10));
    let heard = Arc::new(Mutex::new(Vec::new()));
    let wakes = WakeSink::new({
        let heard = heard.clone();
        move |wake| {
            if let Wake::Granted(_, notice) = wake {
                heard.lock().expect("no panic").push(notice);
            }
        }
    });
    let (holder, silent) =
        (Asker::connect(stage.address(), LONG).await, Asker::connect(stage.address(), LONG).await);
    let last = Asker::connect_with(stage.address(), LONG, wakes).await;
    let names: Vec<String> = (0..RESOURCES).map(|nth| format!("stock-{nth}")).collect();
    for (name, seq) in names.iter().zip(0..) {
        holder.granted(holder.claim(name, seq)).await;
        silent.waits(Claim { units: Units::ONE, ..silent.claim(name, 2 * seq) }).await;
        silent.waits(silent.claim(name, 2 * seq + 1)).await;
        last.waits(Claim { units: Units::ONE, ..last.claim(name, seq) }).await;
    }
    for (name, seq) in names.iter().zip(0..) {
        holder.leave(&holder.claim(name, seq)).await;
    }
    soon(async {
        while heard.lock().expect("no panic").len() < names.len() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    for notice in heard.lock().expect("no panic").iter() {
        assert_eq!(notice.floor, notice.number, "beside one that is over");
    }
    for (name, seq) in names.iter().zip(0..) {
        last.leave(&last.claim(name, seq)).await;
    }
    for asker in [holder, silent, last] {
        asker.store.close().await;
    }
}
