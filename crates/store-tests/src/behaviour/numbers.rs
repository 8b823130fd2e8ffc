//! Numbers of grants that the asker chooses, as a quorum does of its members: through the trait itself.

use std::{sync::Arc, time::Duration};

use lockkeeper_core::{
    ContenderId, GrantNumber, KeeperId, Name, Units,
    clock::Clock,
    store::{Answer, Claim, Context, Grant, Leave, Left, Renew, Renewed, Request, Store, Verdict, WakeSink},
    testing,
};

use super::{Failure, Fixture, Outcome, tests};

tests! {
    numbers_are_as_high_as_asked_for if |can| can.may_be_member,
}

/// One after another, because resources may share a high-water mark, which each of these raises.
async fn numbers_are_as_high_as_asked_for(fixture: &Fixture) -> Outcome {
    let asker = Asker::connect(fixture).await?;
    a_grant_has_the_number_that_is_asked_for(&asker).await?;
    each_claim_of_a_group_has_its_own(&asker).await?;
    a_waiter_keeps_the_number_that_it_asks_for(&asker).await?;
    a_number_is_raised_while_it_is_held(&asker, fixture).await?;
    asker.store.close().await;
    Ok(())
}

/// A keeper without an engine.
struct Asker {
    keeper: KeeperId,
    store: Arc<dyn Store>,
    name: Name,
}

impl Asker {
    async fn connect(fixture: &Fixture) -> Result<Self, Failure> {
        let keeper = KeeperId::random();
        let context = Context {
            keeper,
            wakes: WakeSink::new(drop),
            background: tokio::runtime::Handle::current(),
            clock: Clock::boot(),
            request_limit: Duration::from_secs(10),
        };
        let store = fixture.connector().connect(context).await?;
        Ok(Self { keeper, store, name: Name::new(fixture.name("stock")).expect("a good name") })
    }

    fn contender(&self, seq: u64) -> ContenderId {
        ContenderId { keeper: self.keeper, seq }
    }

    async fn claim(&self, seq: u64, units: Units, at_least: GrantNumber) -> Result<Option<Grant>, Failure> {
        let claim = Claim {
            units,
            lease: Duration::from_secs(60),
            at_least,
            ..testing::claim(&self.name, self.contender(seq))
        };
        match &self.store.apply(&[Request::Claim(claim)]).await?.each[..] {
            [Answer::Claim(Verdict::Granted(grant))] => Ok(Some(*grant)),
            [Answer::Claim(Verdict::Busy { .. })] => Ok(None),
            other => Err(Failure::new(format!("{other:?}"))),
        }
    }

    async fn leave(&self, seq: u64) -> Outcome {
        let (name, contender) = (self.name.clone(), self.contender(seq));
        let leave = Leave { name, contender, tombstone_until: None, hold_at_least: Duration::ZERO };
        match &self.store.apply(&[Request::Leave(leave)]).await?.each[..] {
            [Answer::Leave(Left::Released)] => Ok(()),
            other => Err(Failure::new(format!("{other:?}"))),
        }
    }

    /// The number and the floor after a renewal.
    async fn raise(&self, seq: u64, at_least: GrantNumber) -> Result<(GrantNumber, GrantNumber), Failure> {
        let (name, contender) = (self.name.clone(), self.contender(seq));
        let renew = Renew { name, contender, lease: Duration::ZERO, lower_to: None, detach: false, at_least };
        match &self.store.renew(&[renew]).await?.each[..] {
            [Renewed::Held(grant)] => Ok((grant.number, grant.floor)),
            other => Err(Failure::new(format!("{other:?}"))),
        }
    }

    /// Returns a number far above those that the clock brings other tests to.
    async fn far_ahead(&self) -> Result<GrantNumber, Failure> {
        let grant = self.claim(99, Units::All, 0).await?.expect("free");
        self.leave(99).await?;
        Ok(grant.number + 1_000_000_000)
    }
}

async fn a_grant_has_the_number_that_is_asked_for(asker: &Asker) -> Outcome {
    let least = asker.far_ahead().await?;
    let first = asker.claim(1, Units::All, least).await?.expect("free");
    assert_eq!((first.number, first.floor), (least, least));
    asker.leave(1).await?;
    let second = asker.claim(2, Units::All, 1).await?.expect("free");
    assert!(second.number > least && second.number < least + 1_000_000, "{second:?} grows without the clock");
    asker.leave(2).await?;
    let third = asker.claim(3, Units::All, 0).await?.expect("free");
    assert!(third.number > second.number);
    asker.leave(3).await
}

/// Each claim has its own number, also where the numbers of a group are reserved together.
async fn each_claim_of_a_group_has_its_own(asker: &Asker) -> Outcome {
    let least = asker.far_ahead().await?;
    let asked = [least, 0, least + 1_000_000, 1, least + 500_000];
    let name = |nth: usize| Name::new(format!("{}/{nth}", asker.name)).expect("a good name");
    let claim = |(nth, at_least): (usize, &GrantNumber)| {
        let claim = testing::claim(&name(nth), asker.contender(31 + nth as u64));
        Request::Claim(Claim { lease: Duration::from_secs(60), at_least: *at_least, ..claim })
    };
    let group: Vec<Request> = asked.iter().enumerate().map(claim).collect();
    let answers = asker.store.apply(&group).await?.each;
    for (answer, at_least) in answers.iter().zip(asked) {
        let Answer::Claim(Verdict::Granted(grant)) = answer else {
            return Err(Failure::new(format!("{answers:?}")));
        };
        assert!(grant.number >= at_least && grant.floor == grant.number, "{answers:?}");
    }
    let leave = |nth: usize| {
        let contender = asker.contender(31 + nth as u64);
        Request::Leave(Leave {
            name: name(nth),
            contender,
            tombstone_until: None,
            hold_at_least: Duration::ZERO,
        })
    };
    let group: Vec<Request> = (0..asked.len()).map(leave).collect();
    let left = asker.store.apply(&group).await?.each;
    assert!(left.iter().all(|left| matches!(left, Answer::Leave(Left::Released))), "{left:?}");
    Ok(())
}

async fn a_waiter_keeps_the_number_that_it_asks_for(asker: &Asker) -> Outcome {
    let least = asker.far_ahead().await?;
    asker.claim(11, Units::All, 0).await?.expect("free");
    assert_eq!(asker.claim(12, Units::All, least).await?, None);
    asker.leave(11).await?;
    let granted = asker.claim(12, Units::All, 0).await?.expect("it was the first in the queue");
    assert_eq!(granted.number, least);
    asker.leave(12).await
}

async fn a_number_is_raised_while_it_is_held(asker: &Asker, fixture: &Fixture) -> Outcome {
    let least = asker.far_ahead().await?;
    let first = asker.claim(21, Units::ONE, 0).await?.expect("free").number;
    let second = asker.claim(22, Units::ONE, 0).await?.expect("readers share").number;
    assert_eq!(asker.raise(21, 0).await?, (first, first), "zero raises nothing");
    assert_eq!(asker.raise(21, first - 1).await?, (first, first), "and nothing is lowered");
    assert_eq!(asker.raise(21, least).await?, (least, second));
    assert_eq!(asker.raise(22, least).await?, (least, least), "two readers may come to the same number");
    let view = fixture.view(asker.name.as_str()).await?.expect("held");
    let shown: Vec<_> = view.holders.iter().map(|holder| (holder.contender, holder.token.number())).collect();
    assert_eq!(shown.len(), 2);
    assert!(shown.contains(&(asker.contender(21), least)) && shown.contains(&(asker.contender(22), least)));
    let third = asker.claim(23, Units::ONE, 0).await?.expect("readers share");
    assert!(third.number > least && third.floor == least, "{third:?}");
    assert_eq!(asker.raise(23, third.number + 5).await?, (third.number + 5, least));
    for seq in [21, 22, 23] {
        asker.leave(seq).await?;
    }
    let next = asker.claim(24, Units::All, 0).await?.expect("free");
    assert!(next.number > third.number + 5, "the high-water mark was raised, too");
    asker.leave(24).await
}
