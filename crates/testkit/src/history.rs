//! The judge of all fault tests: holds the records of many workers against the promises of a lock.
//!
//! Workers record their critical sections, each into a [`History`] of its own (a push onto a vector, so that
//! recording does not change the events that it records). The histories are joined at the end and [`check`] sorts and
//! sweeps them once, so a million sections take well under a second in a release build.
//!
//! The judge trusts neither store nor engine: it sees only times, all in nanoseconds on *one* clock, and the
//! tokens that were handed out.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt,
};

mod judge;

#[cfg(test)]
mod tests;

/// How much of a resource a section holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// All of it: a mutex, the write side of a read-write lock, a leader.
    Exclusive,
    /// Some units of it: one for a reader, the permits for a semaphore.
    Units(u32),
    /// All of it until this time, when the writer began to step down to a reader; one unit from then on.
    Downgraded(u64),
}

/// The end of a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The worker called release.
    Released,
    /// The worker saw the lost signal.
    Lost,
    /// The worker was killed inside the section.
    Crashed,
    /// The worker was still inside when recording stopped.
    Open,
}

/// One critical section, as its worker saw it.
///
/// Entering again on a guard already held is not a section of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Section {
    /// The worker that was inside.
    pub worker: u32,
    /// The resource that was locked.
    pub resource: u32,
    /// The acquisition: unlike for every other section of this resource, also when the lock was handed on
    /// inside a process.
    pub contender: u64,
    /// The fencing token.
    pub token: u64,
    /// The smallest token that still held when this one was granted; the section's own when exclusive.
    pub floor: u64,
    /// How much was held.
    pub share: Share,
    /// Read *before* the acquire was called.
    pub asked: u64,
    /// Read *after* the acquire returned.
    pub granted: u64,
    /// Read *before* release was called or once the lost signal was seen, whichever came first; for the other
    /// two ends, when the worker was killed or recording stopped. Not cut off at the deadline: a worker that
    /// was told too late believed too long.
    pub ended: u64,
    /// The way in which it ended.
    pub end: End,
    /// The last local deadline of the lease that the worker knew of; `u64::MAX` if there was none.
    pub deadline: u64,
}

/// One fenced write, as the resource saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// The resource that was written.
    pub resource: u32,
    /// The token that came with the write.
    pub token: u64,
    /// The floor that came with the write: the token itself when exclusive.
    pub floor: u64,
    /// Its place among the writes of this resource: a count, or a time. Writes with the same place count as having
    /// come in the order that excuses them.
    pub at: u64,
    /// Whether the resource let it through.
    pub accepted: bool,
}

/// One acquire that did not become a section: timed out, cancelled, failed, or never answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The worker that waited.
    pub worker: u32,
    /// The resource that it waited for.
    pub resource: u32,
    /// Read *before* the acquire was called.
    pub asked: u64,
    /// When the worker stopped waiting, by its own will or because it was killed; `None` if it still waited
    /// when recording stopped.
    pub gave_up: Option<u64>,
}

/// The records of one worker or of all of them.
///
/// Each worker pushes into its own; `collect` joins them:
///
/// ```
/// use lockkeeper_testkit::history::{History, Wait};
///
/// let workers = (0..4).map(|worker| {
///     std::thread::spawn(move || {
///         let mut seen = History::default();
///         seen.waits.push(Wait { worker, resource: 0, asked: 10, gave_up: Some(20) });
///         seen
///     })
/// });
/// let all: History = workers.map(|worker| worker.join().expect("the worker ends")).collect();
/// assert_eq!(all.waits.len(), 4);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// Critical sections, in any order.
    pub sections: Vec<Section>,
    /// Fenced writes, in any order.
    pub writes: Vec<Write>,
    /// Acquires that did not become sections, in any order.
    pub waits: Vec<Wait>,
}

impl Extend<History> for History {
    fn extend<I: IntoIterator<Item = History>>(&mut self, parts: I) {
        for mut part in parts {
            self.sections.append(&mut part.sections);
            self.writes.append(&mut part.writes);
            self.waits.append(&mut part.waits);
        }
    }
}

impl FromIterator<History> for History {
    fn from_iter<I: IntoIterator<Item = History>>(parts: I) -> Self {
        let mut all = History::default();
        all.extend(parts);
        all
    }
}

/// A stretch of time in which a worker did not run, so could not know that it had lost its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    /// The worker that was stopped.
    pub worker: u32,
    /// When it was stopped.
    pub from: u64,
    /// When it ran again, plus the time it is given to notice.
    pub to: u64,
}

/// A stretch of time in which the store lost grants, or let them end before their time: data was gone after a restart
/// or a failover, or a clock jumped.
///
/// A contender that asked before it was over may have got something that the store knows nothing of, and believe in it
/// until it is told. So two may hold the same, and the answer with the smaller token may come second. That is counted,
/// not held against anybody, and neither against tasks to which such a grant is handed on inside a process, with its
/// number. Nothing else is excused: not a contender that asked afterwards, not a grant whose token lies below one that
/// had returned before it was asked for, not a late signal, and above all no write that went back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// The time from which on the store's answers may be lost.
    pub from: u64,
    /// The time from which on all its answers stay.
    pub to: u64,
    /// The time by which the last one who holds in vain has been told: at most a lease later.
    pub told: u64,
    /// Whether it went on with an old copy of its data. The copy may know a reader that has left, but not the writer
    /// that came next. Then the floors of further readers reach back to the first until its lease ends. Only an old
    /// copy can bring this about: a store that forgets all, or only sees the wrong time, knows no holder that is gone.
    pub old_copy: bool,
}

impl Loss {
    /// Whether a section whose grant was asked for at `asked` may have lost it, and not been told yet.
    fn casts_doubt_on(&self, section: &Section, asked: u64) -> bool {
        asked <= self.to && (self.from..=self.told).contains(&section.granted)
    }
}

/// The promises that this history has to keep. The default promises most and excuses nothing.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// The permits of each semaphore. A resource not named here has no number: any sharers, or one alone.
    pub capacity: HashMap<u32, u32>,
    /// The resources that promise exact order of arrival.
    pub fifo: HashSet<u32>,
    /// Asks this close together, or closer, may be served in either order.
    pub tolerance: u64,
    /// The times at which workers did not run. Wrong beliefs of such a worker are counted, not held against it.
    pub pauses: Vec<Pause>,
    /// When the store lost data or time, in order.
    pub losses: Vec<Loss>,
    /// Whether workers were killed on purpose.
    pub crashes: bool,
    /// How long a resource may stay free while somebody waits for it. Must be longer than a lease: a killed or
    /// cancelled waiter may have been granted the lock without ever seeing it. `None` leaves this unjudged.
    pub bound: Option<u64>,
    /// When the last fault ended; `bound` counts from here at the earliest.
    pub last_fault: u64,
    /// Set for a quorum. Readers that asked at the same time may have the same token there. Their floors may be lower than
    /// necessary: as low as the token of the oldest reader that had some members at that time, but no majority.
    pub readers_alike: bool,
    /// How much after the deadline a running worker may see the lost signal: timer and scheduler need some time.
    pub late: u64,
    /// Fewer sections than this prove nothing; none at all never do.
    pub least: usize,
}

/// A promise that a history can break.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// A resource gave the same token to two sections.
    TokenTwice,
    /// One contender was granted the same resource twice.
    ContenderTwice,
    /// A later grant has a smaller token. Later means: asked for after the other had returned, or returned
    /// after it where the two exclude each other.
    TokenFell,
    /// A floor above its token, or so low that a holder from before would not be fenced off.
    Floor,
    /// Sections that believed to hold at the same time add up to more than there is.
    Overlap,
    /// A write was accepted although its token lies below a floor accepted before.
    WentBack,
    /// A write was refused although nothing newer had been there.
    Refused,
    /// A section went on after its deadline: the lost signal came late or never.
    LateEnd,
    /// A waiter neither got the lock nor gave up.
    Unserved,
    /// The resource was free for longer than the bound while somebody waited.
    Stalled,
    /// Somebody was served before another who had asked earlier.
    OutOfOrder,
    /// A worker died that nobody had killed.
    Crash,
    /// Times in impossible order: the recording is wrong.
    BadRecord,
}

/// A piece of evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// A critical section.
    Section(Section),
    /// A fenced write.
    Write(Write),
    /// An acquire that was not served.
    Wait(Wait),
}

impl From<&Section> for Record {
    fn from(section: &Section) -> Self {
        Record::Section(*section)
    }
}

impl From<&Write> for Record {
    fn from(write: &Write) -> Self {
        Record::Write(*write)
    }
}

impl From<&Wait> for Record {
    fn from(wait: &Wait) -> Self {
        Record::Wait(*wait)
    }
}

/// One broken rule and the records that show it, the older ones first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The rule that was broken.
    pub rule: Rule,
    /// The time from which on it shows.
    pub at: u64,
    /// The records that show it; at most eight.
    pub records: Vec<Record>,
}

/// The judgement in a word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verdict {
    /// No rule was broken, and no two held at once.
    Safe,
    /// Workers that did not run, or whose grants the store had lost, believed to hold locks that others held, and the
    /// fence let nothing of it through.
    SafeWithFencing,
    /// A rule was broken.
    Violated,
    /// Too few sections; or some overlapped with an excuse and no write shows whether the fence works.
    #[default]
    Inconclusive,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verdict::Safe => "SAFE",
            Verdict::SafeWithFencing => "SAFE-WITH-FENCING",
            Verdict::Violated => "VIOLATED",
            Verdict::Inconclusive => "INCONCLUSIVE",
        })
    }
}

/// The findings of [`check`]. Their `Display` is a text of about one screen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The judgement.
    pub verdict: Verdict,
    /// The first ten violations of each rule.
    pub violations: Vec<Violation>,
    /// How often each rule was broken; rules that held are not in here.
    pub broken: BTreeMap<Rule, u64>,
    /// How many faults were put down to a worker that did not run or to a loss of the store: believed overlaps, and
    /// their consequences.
    pub excused: u64,
    /// Sections judged.
    pub sections: usize,
    /// Sections that ended with the lost signal.
    pub lost: usize,
    /// Sections whose worker was killed.
    pub crashed: usize,
    /// Sections still open when recording stopped.
    pub open: usize,
    /// Resources with at least one section.
    pub resources: usize,
    /// Writes let through.
    pub accepted: usize,
    /// Writes refused.
    pub refused: usize,
    /// Acquires that did not become sections.
    pub waits: usize,
    /// The longest time between asking and being granted.
    pub longest_wait: u64,
}

impl Report {
    /// How often this rule was broken.
    pub fn count(&self, rule: Rule) -> u64 {
        self.broken.get(&rule).copied().unwrap_or(0)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { verdict, sections, lost, crashed, open, resources, .. } = self;
        let Report { accepted, refused, waits, excused, .. } = self;
        let longest = self.longest_wait as f64 / 1e6;
        writeln!(f, "{verdict}")?;
        writeln!(
            f,
            "{sections} sections ({lost} lost, {crashed} crashed, {open} open) on {resources} resources"
        )?;
        writeln!(f, "{accepted} writes accepted, {refused} refused; {waits} acquires not served")?;
        write!(f, "longest wait {longest:.3} ms; {excused} overlaps excused")?;
        for (rule, count) in &self.broken {
            write!(f, "\n{rule:?}: {count}")?;
            // One example of each rule, and three records of it, so that all rules fit on the screen.
            if let Some(first) = self.violations.iter().find(|violation| violation.rule == *rule) {
                write!(f, ", first at {}", first.at)?;
                for record in first.records.iter().take(3) {
                    write!(f, "\n    {record:?}")?;
                }
            }
        }
        Ok(())
    }
}

/// Holds a history against the rules.
///
/// ```
/// use lockkeeper_testkit::history::{End, History, Rule, Rules, Section, Share, Verdict, check};
///
/// let first = Section {
///     worker: 1,
///     resource: 0,
///     contender: 1,
///     token: 1024,
///     floor: 1024,
///     share: Share::Exclusive,
///     asked: 0,
///     granted: 10,
///     ended: 20,
///     end: End::Released,
///     deadline: 1_000,
/// };
/// let second = Section { worker: 2, contender: 2, token: 2048, floor: 2048, granted: 21, ended: 30, ..first };
/// let mut history = History { sections: vec![first, second], ..History::default() };
/// assert_eq!(check(&history, &Rules::default()).verdict, Verdict::Safe);
///
/// history.sections[0].ended = 22; // the second was let in at 21
/// let report = check(&history, &Rules::default());
/// assert_eq!(report.verdict, Verdict::Violated);
/// assert_eq!(report.violations[0].rule, Rule::Overlap);
/// println!("{report}");
/// ```
#[must_use]
pub fn check(history: &History, rules: &Rules) -> Report {
    judge::judge(history, rules)
}
