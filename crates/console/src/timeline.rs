//! A lock's last hour as lanes: one for each process that held it or waited for it.

use std::collections::HashMap;

use serde::Serialize;
use utoipa::ToSchema;

use crate::{
    clock::Millis,
    history::{Gap, History, Hold, HoldEnd, Past, Record, Wait, WaitEnd, Who},
};

/// The most lanes. Processes beyond it are only counted.
const MOST_LANES: usize = 30;
/// Neighbours that are closer than one such part of the width are drawn as one.
const PARTS: Millis = 600;

/// A lock's history.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Timeline {
    /// The first moment, in milliseconds since 1970.
    pub from_ms: u64,
    /// The last moment.
    pub to_ms: u64,
    /// The moment since when this server knows the history of the lock.
    pub seen_since_ms: u64,
    /// One lane for each process, with the last holder first.
    pub lanes: Vec<Lane>,
    /// How many more processes there were.
    pub more_lanes: usize,
    /// Times in which nothing was seen.
    pub gaps: Vec<Span>,
    /// How many holds were seen.
    pub holds: usize,
    /// How many waits were seen.
    pub waits: usize,
    /// How many holds were lost because a lease was not renewed in time.
    pub losses: usize,
    /// How many holds were evicted.
    pub evictions: usize,
}

/// A time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, ToSchema)]
pub struct Span {
    /// Its first moment.
    pub from_ms: u64,
    /// Its last moment.
    pub to_ms: u64,
}

/// A process with its holds and its waits.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Lane {
    /// The program.
    pub program: String,
    /// The host.
    pub host: String,
    /// The process; 0 if it is not known.
    pub pid: u32,
    /// Its holds of the lock.
    pub holds: Vec<HoldSpan>,
    /// Its waits for the lock.
    pub waits: Vec<WaitSpan>,
}

/// A hold, or several short ones beside each other.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, ToSchema)]
pub struct HoldSpan {
    /// When it began.
    pub from_ms: u64,
    /// When it ended, or was last seen.
    pub to_ms: u64,
    /// How many holds it stands for.
    pub count: u32,
    /// The fencing token of the last one.
    pub token: String,
    /// The holder's own words.
    pub label: Option<String>,
    /// The kind of its end: `released`, `lost`, `ran_out` or `evicted`; null if it lasts.
    pub end: Option<&'static str>,
    /// The operator who evicted it, if it was through this server.
    pub evicted_by: Option<String>,
    /// The reason of the eviction.
    pub reason: Option<String>,
}

/// A wait, or several short ones beside each other.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, ToSchema)]
pub struct WaitSpan {
    /// When it began.
    pub from_ms: u64,
    /// When it ended, or was last seen.
    pub to_ms: u64,
    /// How many waits it stands for.
    pub count: u32,
    /// The kind of its end: `granted` or `left`; null if it lasts.
    pub end: Option<&'static str>,
}

fn hold_word(end: HoldEnd) -> &'static str {
    match end {
        HoldEnd::Released => "released",
        HoldEnd::Lost => "lost",
        HoldEnd::RanOut => "ran_out",
        HoldEnd::Evicted => "evicted",
    }
}

fn wait_word(end: WaitEnd) -> &'static str {
    match end {
        WaitEnd::Granted => "granted",
        WaitEnd::Left => "left",
    }
}

struct Drawn<'a> {
    who: &'a Who,
    last: Millis,
    holds: Vec<&'a Hold>,
    waits: Vec<&'a Wait>,
}

impl Timeline {
    pub(crate) fn new(history: &History, record: Option<&Record>, now: Millis, length: Millis) -> Self {
        let from = now.saturating_sub(length);
        let seen_since = history.seen_since(record).unwrap_or(now);
        let mut drawn = record.map(|record| lanes(record, from)).unwrap_or_default();
        // Holders first, the last one of them at the top.
        drawn.sort_by_key(|lane| std::cmp::Reverse((!lane.holds.is_empty(), lane.last)));
        let all =
            |end| drawn.iter().flat_map(|lane| &lane.holds).filter(|hold| hold.end == Some(end)).count();
        let close = length / PARTS;
        let mut timeline = Self {
            from_ms: from,
            to_ms: now,
            seen_since_ms: seen_since,
            lanes: Vec::new(),
            more_lanes: drawn.len().saturating_sub(MOST_LANES),
            gaps: history
                .gaps()
                .filter(|gap| gap.to > from)
                .map(|Gap { from, to }| Span { from_ms: from, to_ms: to })
                .collect(),
            holds: drawn.iter().map(|lane| lane.holds.len()).sum(),
            waits: drawn.iter().map(|lane| lane.waits.len()).sum(),
            losses: all(HoldEnd::Lost),
            evictions: all(HoldEnd::Evicted),
        };
        drawn.truncate(MOST_LANES);
        timeline.lanes = drawn.into_iter().map(|lane| lane.finish(close)).collect();
        timeline
    }
}

fn lanes(record: &Record, from: Millis) -> Vec<Drawn<'_>> {
    let mut lanes: Vec<Drawn<'_>> = Vec::new();
    let mut places: HashMap<(&str, &str, u32), usize> = HashMap::new();
    let past = record.past().map(|past| match past {
        Past::Hold(hold) => (Some(hold), None),
        Past::Wait(wait) => (None, Some(wait)),
    });
    let live_holds = record.holds().iter().map(|hold| (Some(hold), None));
    let live_waits = record.waits().iter().map(|wait| (None, Some(wait)));
    for (hold, wait) in past.chain(live_holds).chain(live_waits) {
        let Some((who, to)) =
            hold.map(|hold| (&*hold.who, hold.to)).or(wait.map(|wait| (&*wait.who, wait.to)))
        else {
            continue;
        };
        if to < from {
            continue;
        }
        let place = *places.entry((&who.program, &who.host, who.pid)).or_insert_with(|| {
            lanes.push(Drawn { who, last: 0, holds: Vec::new(), waits: Vec::new() });
            lanes.len() - 1
        });
        let lane = &mut lanes[place];
        lane.holds.extend(hold);
        lane.waits.extend(wait);
        if hold.is_some() || lane.holds.is_empty() {
            lane.last = lane.last.max(to);
        }
    }
    lanes
}

impl Drawn<'_> {
    fn finish(mut self, close: Millis) -> Lane {
        self.holds.sort_by_key(|hold| hold.from);
        self.waits.sort_by_key(|wait| wait.from);
        let mut holds: Vec<HoldSpan> = Vec::new();
        for hold in self.holds {
            let plain = matches!(hold.end, Some(HoldEnd::Released | HoldEnd::RanOut));
            match holds.last_mut() {
                // A loss or an eviction ends its bar; nothing is drawn over it.
                Some(last)
                    if hold.from < last.to_ms + close && matches!(last.end, Some("released" | "ran_out")) =>
                {
                    last.count += 1;
                    last.to_ms = last.to_ms.max(hold.to);
                    last.token = hold.token.to_string();
                    last.end = hold.end.map(hold_word);
                    last.label = hold.who.label.as_deref().map(str::to_owned);
                    if !plain {
                        last.evicted_by = hold.eviction.as_ref().map(|eviction| eviction.by.to_string());
                        last.reason = hold.eviction.as_ref().map(|eviction| eviction.reason.to_string());
                    }
                }
                _ => holds.push(HoldSpan {
                    from_ms: hold.from,
                    to_ms: hold.to,
                    count: 1,
                    token: hold.token.to_string(),
                    label: hold.who.label.as_deref().map(str::to_owned),
                    end: hold.end.map(hold_word),
                    evicted_by: hold.eviction.as_ref().map(|eviction| eviction.by.to_string()),
                    reason: hold.eviction.as_ref().map(|eviction| eviction.reason.to_string()),
                }),
            }
        }
        let mut waits: Vec<WaitSpan> = Vec::new();
        for wait in self.waits {
            match waits.last_mut() {
                Some(last) if wait.from < last.to_ms + close => {
                    last.count += 1;
                    last.to_ms = last.to_ms.max(wait.to);
                    last.end = wait.end.map(wait_word);
                }
                _ => waits.push(WaitSpan {
                    from_ms: wait.from,
                    to_ms: wait.to,
                    count: 1,
                    end: wait.end.map(wait_word),
                }),
            }
        }
        let Who { program, host, pid, .. } = self.who;
        Lane { program: program.to_string(), host: host.to_string(), pid: *pid, holds, waits }
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper::store::Name;

    use super::*;
    use crate::history::tests::{START, World, resource};

    fn timeline(world: &World, minutes: u64) -> Timeline {
        let record = world.history.record(&Name::new("a").expect("a name"));
        Timeline::new(&world.history, record, world.now, minutes * 60_000)
    }

    #[test]
    fn each_process_has_a_lane_and_the_last_holder_is_first() {
        let mut world = World::new();
        world.sample(&[]);
        for _ in 0..20 {
            world.sample(&[resource("a").held_by(1).waited_by(2).waited_by(3)]);
        }
        for _ in 0..20 {
            world.sample(&[resource("a").held_by(2).waited_by(3)]);
        }
        let timeline = timeline(&world, 60);
        let pids: Vec<u32> = timeline.lanes.iter().map(|lane| lane.pid).collect();
        assert_eq!(pids, [2, 1, 3]);
        assert_eq!(timeline.lanes[0].waits[0].end, Some("granted"));
        assert_eq!(timeline.lanes[0].holds[0].end, None);
        assert_eq!(timeline.lanes[1].holds[0].from_ms, START + 2000);
        assert_eq!((timeline.holds, timeline.waits, timeline.losses), (2, 2, 0));
    }

    #[test]
    fn many_short_holds_are_drawn_as_one_and_a_loss_stays() {
        let mut world = World::new();
        world.sample(&[]);
        for task in 0..30 {
            world.sample(&[resource("a").held_by_task(1, task)]);
        }
        for second in 0..8 {
            world.sample(&[resource("a").held_by_task(1, 40).with_left(7000 - second * 1000)]);
        }
        for task in 50..53 {
            world.sample(&[resource("a").held_by_task(1, task)]);
        }
        let timeline = timeline(&world, 60);
        let holds = &timeline.lanes[0].holds;
        assert_eq!(holds.len(), 2, "{holds:?}");
        assert_eq!((holds[0].count, holds[0].end), (31, Some("lost")));
        assert_eq!(timeline.losses, 1);
    }

    #[test]
    fn what_is_before_the_window_is_left_out_and_gaps_are_told() {
        let mut world = World::new();
        world.sample(&[resource("a").held_by(1)]);
        world.sample(&[]);
        world.pass(600);
        world.sample(&[resource("a").held_by(2)]);
        let timeline = timeline(&world, 5);
        assert_eq!(timeline.lanes.len(), 1);
        assert_eq!(timeline.gaps.len(), 1);
        assert!(self::timeline(&world, 60).lanes.len() == 2);
    }

    #[test]
    fn an_unknown_lock_has_an_empty_timeline() {
        let world = World::new();
        assert!(timeline(&world, 60).lanes.is_empty());
    }
}
