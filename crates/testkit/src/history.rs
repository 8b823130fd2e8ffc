//! The judge of all fault tests: holds what many workers saw against what a lock promises.
//!
//! Workers record what happened to them, each into a [`History`] of its own (a push onto a vector, so that
//! recording does not change what is recorded). The histories are joined at the end and [`check`] sorts and
//! sweeps them once, so a million sections take well under a second in a release build.
//!
//! The judge trusts neither store nor engine: it sees only times, all in nanoseconds on *one* clock, and the
//! tokens that were handed out.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet};
use std::fmt;

#[cfg(test)]
mod tests;

/// How many violations of one rule are kept with their records; the others are only counted.
const LISTED: u64 = 10;

/// How many records of one violation are kept: enough to see who met whom.
const RECORDS: usize = 8;

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

/// How a section ended.
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
    /// Who was inside.
    pub worker: u32,
    /// Which resource was locked.
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
    /// Why it ended.
    pub end: End,
    /// The last local deadline of the lease that the worker knew of; `u64::MAX` if there was none.
    pub deadline: u64,
}

/// One fenced write, as the resource saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// Which resource was written.
    pub resource: u32,
    /// The token that came with the write.
    pub token: u64,
    /// The floor that came with the write: the token itself when exclusive.
    pub floor: u64,
    /// Its place among the writes of this resource: a count, or a time. Writes with the same place count as
    /// having come in whichever order excuses them.
    pub at: u64,
    /// Whether the resource let it through.
    pub accepted: bool,
}

/// One acquire that did not become a section: timed out, cancelled, failed, or never answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// Who waited.
    pub worker: u32,
    /// For which resource.
    pub resource: u32,
    /// Read *before* the acquire was called.
    pub asked: u64,
    /// When the worker stopped waiting, by its own will or because it was killed; `None` if it still waited
    /// when recording stopped.
    pub gave_up: Option<u64>,
}

/// What was recorded, by one worker or by all of them.
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
    /// Who was stopped.
    pub worker: u32,
    /// When it was stopped.
    pub from: u64,
    /// When it ran again, plus the time it is given to notice.
    pub to: u64,
}

/// What is promised for this history. The default promises most and excuses nothing.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// The permits of each semaphore. A resource not named here has no number: any sharers, or one alone.
    pub capacity: HashMap<u32, u32>,
    /// The resources that promise exact order of arrival.
    pub fifo: HashSet<u32>,
    /// Asks this close together, or closer, may be served in either order.
    pub tolerance: u64,
    /// When which worker did not run. What it wrongly believed meanwhile is counted, not held against it.
    pub pauses: Vec<Pause>,
    /// Whether workers were killed on purpose.
    pub crashes: bool,
    /// How long a resource may stay free while somebody waits for it. Must be longer than a lease: a killed or
    /// cancelled waiter may have been granted what it never saw. `None` leaves this unjudged.
    pub bound: Option<u64>,
    /// When the last fault ended; `bound` counts from here at the earliest.
    pub last_fault: u64,
    /// How much after the deadline a running worker may see the lost signal: what timer and scheduler need.
    pub late: u64,
    /// Fewer sections than this prove nothing; none at all never do.
    pub least: usize,
}

/// What a history can break.
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
    /// What was broken.
    pub rule: Rule,
    /// From when on it shows.
    pub at: u64,
    /// What shows it; at most eight.
    pub records: Vec<Record>,
}

/// The judgement in a word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verdict {
    /// No rule was broken and nobody held what another held.
    Safe,
    /// Workers that did not run believed to hold what others held, and the fence let nothing of it through.
    SafeWithFencing,
    /// A rule was broken.
    Violated,
    /// Too few sections; or paused workers overlapped and no write shows whether the fence works.
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

/// What [`check`] found. Its `Display` is a text of about one screen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The judgement.
    pub verdict: Verdict,
    /// The first ten violations of each rule.
    pub violations: Vec<Violation>,
    /// How often each rule was broken; rules that held are not in here.
    pub broken: BTreeMap<Rule, u64>,
    /// Believed overlaps put down to a worker that did not run.
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
        write!(f, "longest wait {longest:.3} ms; {excused} overlaps of paused workers")?;
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
    let mut sections = history.sections.clone();
    sections.sort_by_key(|s| (s.resource, s.granted));
    let mut writes = history.writes.clone();
    writes.sort_by_key(|w| (w.resource, w.at));

    let mut judge =
        Judge { rules, pauses: merged(&rules.pauses), free: HashMap::new(), report: Report::default() };
    for of_one in sections.chunk_by(|a, b| a.resource == b.resource) {
        judge.report.resources += 1;
        let mut by_token: Vec<&Section> = of_one.iter().collect();
        by_token.sort_by_key(|s| s.token);
        judge.each_alone(of_one);
        judge.tokens_grow(of_one);
        judge.once(of_one, &by_token);
        judge.floors(&by_token);
        if rules.fifo.contains(&of_one[0].resource) {
            judge.order(&by_token);
        }
        judge.overlaps(of_one);
        judge.free_stretches(of_one);
    }
    for of_one in writes.chunk_by(|a, b| a.resource == b.resource) {
        judge.writes(of_one);
    }
    judge.waits(&sections, &history.waits);
    judge.verdict()
}

/// The pauses of each worker, in order and without overlap, so that one search finds the right one.
fn merged(pauses: &[Pause]) -> HashMap<u32, Vec<Pause>> {
    let mut sorted = pauses.to_vec();
    sorted.sort_by_key(|p| p.from);
    let mut merged: HashMap<u32, Vec<Pause>> = HashMap::new();
    for pause in sorted {
        let of_worker = merged.entry(pause.worker).or_default();
        match of_worker.last_mut() {
            Some(last) if pause.from <= last.to => last.to = last.to.max(pause.to),
            _ => of_worker.push(pause),
        }
    }
    merged
}

impl Section {
    /// Whether it was granted alone.
    fn exclusive(&self) -> bool {
        !matches!(self.share, Share::Units(_))
    }

    /// Until when the store may have kept it for its holder. A release frees at once; in all other cases
    /// only the end of the lease does.
    fn occupied_until(&self) -> u64 {
        if self.end == End::Released { self.ended } else { self.ended.max(self.deadline) }
    }
}

/// A part of a section in which neither its share nor its excuse changes.
#[derive(Clone, Copy)]
struct Piece {
    from: u64,
    to: u64,
    section: usize,
    /// `None` is all of the resource.
    units: Option<u32>,
    excused: bool,
}

/// What is held at one moment.
#[derive(Default)]
struct Load {
    holders: u64,
    alone: u64,
    units: u64,
}

impl Load {
    fn add(&mut self, piece: Piece) {
        self.holders += 1;
        self.alone += u64::from(piece.units.is_none());
        self.units += u64::from(piece.units.unwrap_or(0));
    }

    fn remove(&mut self, piece: Piece) {
        self.holders -= 1;
        self.alone -= u64::from(piece.units.is_none());
        self.units -= u64::from(piece.units.unwrap_or(0));
    }

    fn exceeds(&self, capacity: Option<u32>) -> bool {
        (self.alone > 0 && self.holders > 1) || capacity.is_some_and(|most| self.units > u64::from(most))
    }
}

/// The rules, and what was found so far.
struct Judge<'a> {
    rules: &'a Rules,
    pauses: HashMap<u32, Vec<Pause>>,
    /// For each resource, when it was free for longer than the bound.
    free: HashMap<u32, Vec<(u64, u64)>>,
    report: Report,
}

impl Judge<'_> {
    /// Counts a violation; gathers its records only while they are still listed.
    fn found<R: Into<Record>>(&mut self, rule: Rule, at: u64, records: impl IntoIterator<Item = R>) {
        let count = self.report.broken.entry(rule).or_default();
        *count += 1;
        if *count <= LISTED {
            let records = records.into_iter().take(RECORDS).map(Into::into).collect();
            self.report.violations.push(Violation { rule, at, records });
        }
    }

    /// The first pause of this worker that ends after `time`.
    fn pause_after(&self, worker: u32, time: u64) -> Option<Pause> {
        let of_worker = self.pauses.get(&worker)?;
        of_worker.get(of_worker.partition_point(|p| p.to <= time)).copied()
    }

    /// Whether this worker stood still at any time between the two.
    fn paused(&self, worker: u32, from: u64, to: u64) -> bool {
        self.pause_after(worker, from).is_some_and(|p| p.from <= to)
    }

    /// What one section shows without the others.
    fn each_alone(&mut self, sections: &[Section]) {
        self.report.sections += sections.len();
        for s in sections {
            self.report.longest_wait = self.report.longest_wait.max(s.granted.saturating_sub(s.asked));
            match s.end {
                End::Released => {}
                End::Lost => self.report.lost += 1,
                End::Crashed => self.report.crashed += 1,
                End::Open => self.report.open += 1,
            }
            if s.asked > s.granted || s.granted > s.ended {
                self.found(Rule::BadRecord, s.granted, [s]);
            }
            if s.end == End::Crashed && !self.rules.crashes {
                self.found(Rule::Crash, s.ended, [s]);
            }
            // The dead see no signal, so their deadline is not looked at.
            let latest = s.deadline.saturating_add(self.rules.late);
            if s.ended > latest && s.end != End::Crashed {
                let pause = self.pause_after(s.worker, latest);
                if !pause.is_some_and(|p| p.from <= latest && s.ended <= p.to) {
                    self.found(Rule::LateEnd, s.deadline, [s]);
                }
            }
        }
    }

    /// A later grant has a higher token. Takes the sections of one resource in order of `granted`.
    fn tokens_grow(&mut self, sections: &[Section]) {
        // For each place in the list, who has the highest token before it: of all, and of those granted alone.
        let mut highest: Vec<[Option<&Section>; 2]> = Vec::with_capacity(sections.len());
        let [mut of_all, mut of_alone]: [Option<&Section>; 2] = [None, None];
        // Where the sections granted at the very same time begin: none of them is the earlier one.
        let mut instant = 0;
        for (i, s) in sections.iter().enumerate() {
            highest.push([of_all, of_alone]);
            if sections[instant].granted < s.granted {
                instant = i;
            }
            if of_all.is_none_or(|top| top.token <= s.token) {
                of_all = Some(s);
            } else {
                // Rare, so it may cost a search: who had returned before this one asked?
                let returned = sections[..i].partition_point(|x| x.granted < s.asked);
                let before_asking = highest[returned][0];
                // Of two that exclude each other the one that returned first was granted first, because it
                // cannot have been granted while the other held. That needs an answer that came in time.
                let in_time = s.granted <= s.deadline && !self.paused(s.worker, s.asked, s.granted);
                let rival = highest[instant][usize::from(!s.exclusive())].filter(|_| in_time);
                let earlier = before_asking.into_iter().chain(rival).max_by_key(|x| x.token);
                if let Some(earlier) = earlier.filter(|x| x.token > s.token) {
                    self.found(Rule::TokenFell, s.granted, [earlier, s]);
                }
            }
            if s.exclusive() && of_alone.is_none_or(|top| top.token <= s.token) {
                of_alone = Some(s);
            }
        }
    }

    /// Nothing is granted twice.
    fn once(&mut self, sections: &[Section], by_token: &[&Section]) {
        for pair in by_token.windows(2).filter(|pair| pair[0].token == pair[1].token) {
            self.found(Rule::TokenTwice, pair[1].granted, [pair[0], pair[1]]);
        }
        let mut by_contender: Vec<&Section> = sections.iter().collect();
        by_contender.sort_by_cached_key(|s| s.contender);
        for pair in by_contender.windows(2).filter(|pair| pair[0].contender == pair[1].contender) {
            // With the same token as well it is a token given twice.
            if pair[0].token != pair[1].token {
                self.found(Rule::ContenderTwice, pair[1].granted, [pair[0], pair[1]]);
            }
        }
    }

    /// A floor reaches back to those who may still hold, and no further: stale writes would pass.
    fn floors(&mut self, by_token: &[&Section]) {
        let mut last_alone: Option<&Section> = None;
        for &s in by_token {
            // Nothing from before the last exclusive grant still held, nor that one unless it had stepped down.
            let least = match last_alone {
                _ if s.exclusive() => s.token,
                Some(alone) if alone.share == Share::Exclusive => s.token.min(alone.token.saturating_add(1)),
                Some(downgraded) => downgraded.token,
                None => 0,
            };
            if s.floor < least || s.floor > s.token {
                self.found(Rule::Floor, s.granted, last_alone.into_iter().chain([s]));
            }
            if s.exclusive() {
                last_alone = Some(s);
            }
        }
    }

    /// Who asks first is served first. The order of tokens is the order in which the store granted; that of
    /// `granted` would also depend on how long each answer took.
    fn order(&mut self, by_token: &[&Section]) {
        let mut asked_last: Option<&Section> = None;
        for &s in by_token {
            let overtaker = asked_last.filter(|o| o.asked > s.asked.saturating_add(self.rules.tolerance));
            if let Some(overtaker) = overtaker.filter(|_| !self.paused(s.worker, s.asked, s.granted)) {
                self.found(Rule::OutOfOrder, s.granted, [overtaker, s]);
            }
            if asked_last.is_none_or(|last| s.asked > last.asked) {
                asked_last = Some(s);
            }
        }
    }

    /// Cuts a section where its worker stops, runs again or steps down.
    fn cut(&self, section: usize, s: &Section, pieces: &mut Vec<Piece>) {
        let mut from = s.granted;
        while from < s.ended {
            let mut to = s.ended;
            let mut excused = false;
            if let Some(pause) = self.pause_after(s.worker, from) {
                excused = pause.from <= from;
                to = to.min(if excused { pause.to } else { pause.from });
            }
            let units = match s.share {
                Share::Exclusive => None,
                Share::Units(units) => Some(units),
                Share::Downgraded(at) if from < at => {
                    to = to.min(at);
                    None
                }
                Share::Downgraded(_) => Some(1),
            };
            pieces.push(Piece { from, to, section, units, excused });
            from = to;
        }
    }

    /// At no time do those who believe to hold add up to more than there is. Ending and beginning at the same
    /// time is no overlap.
    fn overlaps(&mut self, sections: &[Section]) {
        let mut pieces = Vec::with_capacity(sections.len());
        for (i, s) in sections.iter().enumerate() {
            self.cut(i, s, &mut pieces);
        }
        pieces.sort_by_key(|p| p.from);

        let capacity = self.rules.capacity.get(&sections[0].resource).copied();
        // All who believe to hold, and of these the ones without an excuse.
        let (mut all, mut firm) = (Load::default(), Load::default());
        let mut holding: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
        for (i, &piece) in pieces.iter().enumerate() {
            while let Some(&Reverse((_, over))) = holding.peek().filter(|first| first.0.0 <= piece.from) {
                holding.pop();
                all.remove(pieces[over]);
                if !pieces[over].excused {
                    firm.remove(pieces[over]);
                }
            }
            all.add(piece);
            if !piece.excused {
                firm.add(piece);
            }
            if !piece.excused && firm.exceeds(capacity) {
                let others = holding.iter().map(|held| pieces[held.0.1]).filter(|held| !held.excused);
                let met = others.take(RECORDS - 1).chain([piece]).map(|piece| &sections[piece.section]);
                self.found(Rule::Overlap, piece.from, met);
            } else if all.exceeds(capacity) {
                self.report.excused += 1;
            }
            holding.push(Reverse((piece.to, i)));
        }
    }

    /// Remembers when this resource was free for longer than the bound.
    fn free_stretches(&mut self, sections: &[Section]) {
        let Some(bound) = self.rules.bound else { return };
        let mut free = Vec::new();
        let mut since = self.rules.last_fault;
        for s in sections {
            if s.granted > since.saturating_add(bound) {
                free.push((since, s.granted));
            }
            since = since.max(s.occupied_until());
        }
        free.push((since, u64::MAX));
        self.free.insert(sections[0].resource, free);
    }

    /// Everyone who waits is served or gives up, and nobody waits long for a resource that is free.
    fn waits(&mut self, sections: &[Section], waits: &[Wait]) {
        self.report.waits = waits.len();
        for wait in waits {
            match wait.gave_up {
                None => self.found(Rule::Unserved, wait.asked, [wait]),
                Some(end) if end < wait.asked => self.found(Rule::BadRecord, wait.asked, [wait]),
                Some(end) => self.waited(wait.worker, wait.resource, (wait.asked, end), wait),
            }
        }
        for s in sections {
            self.waited(s.worker, s.resource, (s.asked, s.granted), s);
        }
    }

    fn waited(&mut self, worker: u32, resource: u32, (asked, until): (u64, u64), record: impl Into<Record>) {
        let Some(bound) = self.rules.bound else { return };
        let always = [(self.rules.last_fault, u64::MAX)];
        let free = self.free.get(&resource).map_or(&always[..], Vec::as_slice);
        // The first stretch that goes on for long enough after the ask leaves this wait the most time.
        let first = free.partition_point(|(_, end)| *end <= asked.saturating_add(bound));
        let Some(&(from, to)) = free.get(first) else { return };
        let (from, to) = (from.max(asked), to.min(until));
        if to.saturating_sub(from) > bound && !self.paused(worker, from, to) {
            self.found(Rule::Stalled, from, [record]);
        }
    }

    /// What the resource let through never goes back, and what it refused was stale. Takes the writes of one
    /// resource in order of `at`.
    fn writes(&mut self, writes: &[Write]) {
        let mut highest: Option<&Write> = None;
        for at_once in writes.chunk_by(|a, b| a.at == b.at) {
            let before = highest;
            for write in at_once.iter().filter(|w| w.accepted) {
                self.report.accepted += 1;
                if write.floor > write.token {
                    self.found(Rule::Floor, write.at, [write]);
                }
                if let Some(newer) = before.filter(|b| write.token < b.floor) {
                    self.found(Rule::WentBack, write.at, [newer, write]);
                }
                if highest.is_none_or(|h| write.floor > h.floor) {
                    highest = Some(write);
                }
            }
            for write in at_once.iter().filter(|w| !w.accepted) {
                self.report.refused += 1;
                if highest.is_none_or(|h| write.token >= h.floor) {
                    self.found(Rule::Refused, write.at, highest.into_iter().chain([write]));
                }
            }
        }
    }

    fn verdict(mut self) -> Report {
        let report = &self.report;
        self.report.verdict = if !report.broken.is_empty() {
            Verdict::Violated
        } else if report.sections < self.rules.least.max(1) {
            Verdict::Inconclusive
        } else if report.excused == 0 {
            Verdict::Safe
        } else if report.accepted + report.refused == 0 {
            Verdict::Inconclusive
        } else {
            Verdict::SafeWithFencing
        };
        self.report
    }
}
