//! How long a session certainly lives. Pure.
//!
//! The leader ends a session that it has not heard of for the session's timeout. A server that is cut off from its leader
//! still answers pings and reads, so only answers of the quorum move the deadline. Such an answer proves that the leader
//! has heard of the session lately, but not of this very request: the servers tell the leader once per tick which sessions
//! they heard of. So an answered request counts once another one, sent a tick after that answer, is answered too.

use std::{collections::VecDeque, time::Duration};

use lockkeeper_core::{clock::BootTime, deadline::margin};

use crate::limits::Limits;

/// The time until which a session certainly lives.
#[derive(Debug)]
pub(crate) struct SessionDeadline {
    pub(crate) until: BootTime,
    /// How long the session certainly lasts, on whichever server it is.
    pub(crate) timeout: Duration,
    /// How long it takes the leader to hear of the session, at most.
    tick: Duration,
    /// Answered requests that no later one has confirmed yet, in order.
    answered: VecDeque<Answered>,
}

#[derive(Clone, Copy, Debug)]
struct Answered {
    sent: BootTime,
    at: BootTime,
}

impl SessionDeadline {
    /// The deadline of a session that was asked for at `sent`.
    pub(crate) fn new(sent: BootTime, timeout: Duration, tick: Duration) -> Self {
        Self { until: lives_until(sent, timeout), timeout, tick, answered: VecDeque::new() }
    }

    /// Takes note that the quorum answered at `now` a request that was sent at `sent`.
    pub(crate) fn answered(&mut self, sent: BootTime, now: BootTime) {
        if sent >= self.until || now >= self.until {
            return;
        }
        while let Some(earlier) = self.answered.front() {
            if earlier.at.after(self.tick) > sent {
                break;
            }
            self.until = self.until.max(lives_until(earlier.sent, self.timeout));
            self.answered.pop_front();
        }
        // One per tenth of a tick is enough, however many requests there are.
        if self.answered.back().is_none_or(|last| last.sent.after(self.tick / 10) <= sent) {
            self.answered.push_back(Answered { sent, at: now });
        }
    }

    /// Corrects the deadline if the servers keep the session for less, or have longer ticks, than was assumed. Says whether
    /// it became earlier.
    pub(crate) fn allow_for(&mut self, limits: Limits) -> bool {
        let shorter = self.timeout.saturating_sub(limits.longest);
        let later = limits.tick.saturating_sub(self.tick);
        self.timeout -= shorter;
        self.tick += later;
        self.until = self.until.before(shorter + later);
        !(shorter + later).is_zero()
    }
}

fn lives_until(heard: BootTime, timeout: Duration) -> BootTime {
    heard.after(timeout).before(margin(timeout))
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: BootTime = BootTime(1_000_000_000_000);
    const TICK: Duration = Duration::from_secs(2);
    const TIMEOUT: Duration = Duration::from_secs(10);

    fn at(seconds: u64) -> BootTime {
        START.after(Duration::from_secs(seconds))
    }

    fn opened() -> SessionDeadline {
        SessionDeadline::new(START, TIMEOUT, TICK)
    }

    #[test]
    fn i3_an_answer_counts_once_a_tick_later_another_is_answered() {
        let mut deadline = opened();
        deadline.answered(at(3), at(4));
        deadline.answered(at(5), at(5));
        assert_eq!(deadline.until, lives_until(START, TIMEOUT), "nobody told the leader yet, perhaps");
        deadline.answered(at(6), at(6));
        assert_eq!(deadline.until, lives_until(at(3), TIMEOUT));
    }

    #[test]
    fn i3_nothing_sent_or_answered_past_the_deadline_extends_it() {
        let mut deadline = opened();
        deadline.answered(at(1), at(1));
        deadline.answered(at(9), at(11));
        deadline.answered(at(11), at(11));
        assert_eq!(deadline.until, lives_until(START, TIMEOUT));
    }

    #[test]
    fn i3_a_session_that_became_shorter_ends_earlier() {
        let mut deadline = opened();
        deadline.answered(at(1), at(1));
        deadline.answered(at(3), at(3));
        assert_eq!(deadline.until, lives_until(at(1), TIMEOUT));
        let (longest, tick) = (TIMEOUT / 2, TICK * 2);
        deadline.allow_for(Limits { longest, tick });
        assert!(deadline.until <= lives_until(at(1), longest).before(TICK));
        let before = deadline.until;
        deadline.answered(at(3), at(3));
        assert_eq!(deadline.until, before, "two of the ticks that were counted with before");
        deadline.allow_for(Limits { longest: TIMEOUT, tick: TICK });
        assert_eq!((deadline.timeout, deadline.tick), (longest, tick), "some server has these limits");
    }
}
