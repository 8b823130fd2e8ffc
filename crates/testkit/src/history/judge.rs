//! The judgement of a history: each rule is one pass over the sections of a resource.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
};

use lockkeeper_core::Token;

use super::{
    End, History, Loss, Pause, Record, Report, Rule, Rules, Section, Share, Verdict, Violation, Wait, Write,
};

/// How many violations of one rule are kept with their records; the others are only counted.
const LISTED: u64 = 10;

/// How many records of one violation are kept: enough to see which sections met.
const RECORDS: usize = 8;

/// Judges a history by the rules.
pub(super) fn judge(history: &History, rules: &Rules) -> Report {
    let mut sections = history.sections.clone();
    sections.sort_by_key(|s| (s.resource, s.granted));
    let mut writes = history.writes.clone();
    writes.sort_by_key(|w| (w.resource, w.at));

    let mut judge = Judge {
        rules,
        pauses: merged(&rules.pauses),
        asked: HashMap::new(),
        free: HashMap::new(),
        report: Report::default(),
    };
    if !rules.losses.is_empty() {
        for s in &sections {
            let asked = judge.asked.entry(s.grant()).or_insert(s.asked);
            *asked = s.asked.min(*asked);
        }
    }
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
    pub(super) fn exclusive(&self) -> bool {
        !matches!(self.share, Share::Units(_))
    }

    /// The resource and the number of the grant, which is the same for all to whom it was handed on inside a process.
    fn grant(&self) -> (u32, u64) {
        (self.resource, self.token / u64::from(Token::STEPS))
    }

    /// The end of the time for which the store may have kept it for its holder. A release frees at once; in all other
    /// cases only the end of the lease does.
    fn occupied_until(&self) -> u64 {
        if self.end == End::Released { self.ended } else { self.ended.max(self.deadline) }
    }
}

/// The smallest floor that fences off all earlier holders. When `s` was granted, the holds before the last exclusive
/// one were over, and so was that one unless it had been downgraded.
fn least_floor(s: &Section, last_alone: Option<&Section>) -> u64 {
    match last_alone {
        _ if s.exclusive() => s.token,
        Some(alone) if alone.share == Share::Exclusive => s.token.min(alone.token.saturating_add(1)),
        Some(downgraded) => downgraded.token,
        None => 0,
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

/// The load of a resource at one moment.
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

/// The rules, and the findings so far.
struct Judge<'a> {
    rules: &'a Rules,
    pauses: HashMap<u32, Vec<Pause>>,
    /// When each grant was asked for by its first holder. Only for a store that lost something.
    asked: HashMap<(u32, u64), u64>,
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

    /// The time at which the grant of this section was asked for: by its first holder if the store lost something, else
    /// by the section itself.
    fn asked(&self, s: &Section) -> u64 {
        self.asked.get(&s.grant()).map_or(s.asked, |asked| *asked)
    }

    /// Checks each section without the others.
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
        // For each place in the list, the section with the highest token before it: of all, and of those granted alone.
        let mut highest: Vec<[Option<&Section>; 2]> = Vec::with_capacity(sections.len());
        let [mut of_all, mut of_alone]: [Option<&Section>; 2] = [None, None];
        // The place where the sections granted at the very same time begin: none of them is the earlier one.
        let mut instant = 0;
        for (i, s) in sections.iter().enumerate() {
            highest.push([of_all, of_alone]);
            if sections[instant].granted < s.granted {
                instant = i;
            }
            if of_all.is_none_or(|top| top.token <= s.token) {
                of_all = Some(s);
            } else {
                let in_doubt = self.rules.losses.iter().any(|loss| loss.casts_doubt_on(s, self.asked(s)));
                let asked = if in_doubt { self.asked(s) } else { s.asked };
                // Rare, so it may cost a search for the sections that had returned before this one was asked for.
                let returned = sections[..i].partition_point(|x| x.granted < asked);
                let before_asking = highest[returned][0];
                // Of two that exclude each other, the one that returned first was granted first, because it cannot have
                // been granted while the other held. That needs an answer in time, and a store that kept its grants.
                let in_time = s.granted <= s.deadline && !self.paused(s.worker, s.asked, s.granted);
                let rival = highest[instant][usize::from(!s.exclusive())].filter(|_| in_time);
                let lost = rival.filter(|_| in_doubt);
                let rival = rival.filter(|_| !in_doubt);
                let earlier = before_asking.into_iter().chain(rival).max_by_key(|x| x.token);
                if let Some(earlier) = earlier.filter(|x| x.token > s.token) {
                    self.found(Rule::TokenFell, s.granted, [earlier, s]);
                } else if lost.is_some_and(|x| x.token > s.token) {
                    self.report.excused += 1;
                }
            }
            if s.exclusive() && of_alone.is_none_or(|top| top.token <= s.token) {
                of_alone = Some(s);
            }
        }
    }

    /// Checks that nothing is granted twice.
    fn once(&mut self, sections: &[Section], by_token: &[&Section]) {
        let alike = |pair: &[&Section]| {
            let shared = !pair[0].exclusive() && !pair[1].exclusive();
            let at_once = pair[0].asked <= pair[1].granted && pair[1].asked <= pair[0].granted;
            self.rules.readers_alike && shared && at_once
        };
        let twice = by_token.windows(2).filter(|pair| pair[0].token == pair[1].token);
        let twice: Vec<_> = twice.filter(|pair| !alike(pair)).collect();
        for pair in twice {
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

    /// A floor reaches back to the contenders that may still hold, and no further: stale writes would pass.
    fn floors(&mut self, by_token: &[&Section]) {
        let mut last_alone: Option<&Section> = None;
        for (place, &s) in by_token.iter().enumerate() {
            let low = s.floor < least_floor(s, last_alone) && (s.exclusive() || !self.rules.readers_alike);
            if low || s.floor > s.token {
                // An old copy may not know the last writers. It knows all other holders.
                let excuses = |loss: &&Loss| {
                    let lost = |x: &Section| self.asked(x) <= loss.to && x.granted >= loss.from;
                    let known = by_token[..place].iter().rev().find(|x| x.exclusive() && !lost(x)).copied();
                    let in_doubt = loss.old_copy && (loss.from..=loss.told).contains(&s.granted);
                    in_doubt && s.floor >= least_floor(s, known)
                };
                if s.floor <= s.token && self.rules.losses.iter().any(|loss| excuses(&loss)) {
                    self.report.excused += 1;
                } else {
                    self.found(Rule::Floor, s.granted, last_alone.into_iter().chain([s]));
                }
            }
            if s.exclusive() {
                last_alone = Some(s);
            }
        }
    }

    /// Contenders are served in the order in which they asked. The order of tokens is the order in which the store
    /// granted; that of `granted` would also depend on how long each answer took.
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

    /// Cuts a section where its worker stops, runs again or steps down, and where the store loses it.
    fn cut(&self, section: usize, s: &Section, pieces: &mut Vec<Piece>) {
        let mut from = s.granted;
        while from < s.ended {
            let mut to = s.ended;
            let mut excused = false;
            let pause = self.pause_after(s.worker, from).map(|pause| (pause.from, pause.to));
            let asked = self.asked(s);
            let losses = self.rules.losses.iter().filter(|loss| asked <= loss.to && from < loss.told);
            let loss = losses.map(|loss| (loss.from, loss.told)).min();
            if let Some(excuse) = pause.into_iter().chain(loss).min() {
                excused = excuse.0 <= from;
                to = to.min(if excused { excuse.1 } else { excuse.0 });
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

    /// Checks that the beliefs to hold never exceed the capacity. Ending and beginning at the same time is no overlap.
    fn overlaps(&mut self, sections: &[Section]) {
        let mut pieces = Vec::with_capacity(sections.len());
        for (i, s) in sections.iter().enumerate() {
            self.cut(i, s, &mut pieces);
        }
        pieces.sort_by_key(|p| p.from);

        let capacity = self.rules.capacity.get(&sections[0].resource).copied();
        // All sections that believe to hold, and of these the ones without an excuse.
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

    /// Checks that every waiter is served or gives up, and that none waits long for a resource that is free.
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

    /// The writes that the resource let through never go back, and those that it refused were stale. Takes the writes
    /// of one resource in order of `at`.
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
