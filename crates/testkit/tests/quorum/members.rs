//! Redis servers behind proxies that are the members of one quorum, and the troubles that may befall each of them.

use std::{
    io,
    time::{Duration, Instant},
};

use lockkeeper_testkit::{
    dice::Dice,
    proxy::Proxy,
    servers::{Redis, RedisOptions},
};

use crate::{millis, secs};

/// The longest lease: a member that may have lost its data does not vote for this long.
pub(crate) const MAX_LEASE: Duration = secs(2);

/// A trouble that may befall a member for a while.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Trouble {
    /// It is killed, and comes back with its data. It is another run of the server, so it does not vote at first.
    Killed,
    /// It is killed, and comes back empty.
    Emptied,
    /// Its process stands still.
    Stopped,
    /// Clients lose their connections to it and get no others.
    CutOff,
    /// Nothing that is sent to it or by it arrives, until all of it does.
    HeldBack,
}

impl Trouble {
    pub(crate) const ALL: [Self; 5] =
        [Self::Killed, Self::Emptied, Self::Stopped, Self::CutOff, Self::HeldBack];
}

/// One member.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) server: Redis,
    pub(crate) proxy: Proxy,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// It is there and votes.
    Well,
    In(Trouble, Instant),
    /// The trouble is over, and it has not been seen to vote since.
    After(Trouble),
}

impl Member {
    /// Starts a server that keeps its data when it is killed, behind a proxy.
    pub(crate) fn start(options: RedisOptions) -> io::Result<Self> {
        let server = options.append_only().start()?;
        let proxy = Proxy::start(server.address())?;
        Ok(Self { server, proxy, state: State::Well })
    }

    pub(crate) fn begin(&mut self, trouble: Trouble, until: Instant) {
        match trouble {
            Trouble::Killed | Trouble::Emptied => self.server.process().kill(),
            Trouble::Stopped => self.server.process().pause(),
            Trouble::CutOff => {
                self.proxy.refuse(true);
                self.proxy.cut_all();
            }
            Trouble::HeldBack => self.proxy.pause(true),
        }
        self.state = State::In(trouble, until);
    }

    fn end(&mut self, trouble: Trouble) {
        match trouble {
            Trouble::Killed => self.server.start_again().expect("started"),
            Trouble::Emptied => self.server.restart_empty().expect("started"),
            Trouble::Stopped => self.server.process().resume(),
            Trouble::CutOff => self.proxy.refuse(false),
            Trouble::HeldBack => self.proxy.pause(false),
        }
        self.state = State::After(trouble);
    }

    /// Whether its record says that it votes, in the run that it is in.
    pub(crate) fn votes(&self) -> bool {
        let record = self.server.command(["GET", "lockkeeper:member"]).unwrap_or_default();
        let run = self.server.info("server", "run_id").expect("it is up");
        record.split(' ').next_back().is_some_and(|voter| voter.starts_with('+') && voter.contains(&run))
    }

    /// Takes note of the end of its trouble, and of its vote.
    fn look(&mut self) {
        match self.state {
            State::In(trouble, until) if Instant::now() >= until => self.end(trouble),
            State::After(_) if self.votes() => self.state = State::Well,
            _ => {}
        }
    }
}

/// All members.
#[derive(Debug)]
pub(crate) struct Members {
    pub(crate) each: Vec<Member>,
}

impl Members {
    /// Starts `count` members that vote.
    pub(crate) fn found(count: usize) -> Self {
        let each = (0..count).map(|_| Member::start(RedisOptions::default())).collect::<io::Result<_>>();
        Self::of(each.expect("started"))
    }

    /// A quorum of these members, which vote on return.
    pub(crate) fn of(each: Vec<Member>) -> Self {
        let members = Self { each };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(lockkeeper::quorum::found_fresh(&members.url())).expect("founded");
        assert!(members.each.iter().all(Member::votes));
        members
    }

    /// The URL of the quorum, through the proxies.
    pub(crate) fn url(&self) -> String {
        let addresses = self.each.iter().map(|member| format!("redis://{}", member.proxy.address()));
        let addresses: Vec<String> = addresses.collect();
        format!("quorum:max_lease={}s,{}", MAX_LEASE.as_secs(), addresses.join(","))
    }

    /// Ends the troubles that are over, and takes note of members that vote again.
    pub(crate) fn look(&mut self) {
        self.each.iter_mut().for_each(Member::look);
    }

    /// Gives the trouble to some member, if two at most are in one then. Members lose their data one at a time: the next one
    /// does when the last one votes again. False: it is too early for this trouble.
    pub(crate) fn strike(&mut self, trouble: Trouble, dice: &mut Dice) -> bool {
        self.look();
        let in_trouble = self.each.iter().filter(|member| member.state != State::Well).count();
        let loses = |state| matches!(state, State::In(Trouble::Emptied, _) | State::After(Trouble::Emptied));
        let is_losing = self.each.iter().any(|member| loses(member.state));
        if in_trouble >= 2 || (trouble == Trouble::Emptied && is_losing) {
            return false;
        }
        let mut well: Vec<_> = self.each.iter_mut().filter(|member| member.state == State::Well).collect();
        let chosen = dice.below(well.len() as u64) as usize;
        // Mostly shorter than a lease and the time in which a member is watched, and now and then much longer.
        let most = if dice.chance(200) { 6000 } else { 1400 };
        well[chosen].begin(trouble, Instant::now() + millis(100) + dice.up_to(most));
        true
    }

    /// Ends all troubles, and waits until all members vote.
    pub(crate) fn heal(&mut self, mut meanwhile: impl FnMut(Duration)) {
        let begun = Instant::now();
        while self.each.iter().any(|member| member.state != State::Well) {
            self.look();
            meanwhile(millis(100));
            assert!(begun.elapsed() < secs(60), "they do not vote again: {:?}", self.states());
        }
    }

    fn states(&self) -> Vec<State> {
        self.each.iter().map(|member| member.state).collect()
    }
}
