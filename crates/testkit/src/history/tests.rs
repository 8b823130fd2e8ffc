use super::*;

mod losses;
mod random;

/// An exclusive section of resource 0 that asks one tick before it is granted. Worker and contender follow
/// the token, so sections with different tokens differ in all that must differ.
fn alone(token: u64, granted: u64, ended: u64) -> Section {
    Section {
        worker: token as u32,
        resource: 0,
        contender: token,
        token,
        floor: token,
        share: Share::Exclusive,
        asked: granted - 1,
        granted,
        ended,
        end: End::Released,
        deadline: ended + 100,
    }
}

fn shared(token: u64, floor: u64, units: u32, granted: u64, ended: u64) -> Section {
    Section { floor, share: Share::Units(units), ..alone(token, granted, ended) }
}

fn write(token: u64, floor: u64, at: u64, accepted: bool) -> Write {
    Write { resource: 0, token, floor, at, accepted }
}

fn of(sections: &[Section]) -> History {
    History { sections: sections.to_vec(), ..History::default() }
}

fn of_writes(writes: &[Write]) -> History {
    History { sections: vec![alone(1, 1, 2)], writes: writes.to_vec(), ..History::default() }
}

#[track_caller]
fn safe(history: &History, rules: &Rules) {
    let report = check(history, rules);
    assert_eq!(report.verdict, Verdict::Safe, "{report}");
}

/// Expects exactly one violation: of this rule, shown by these records.
#[track_caller]
fn breaks<R: Into<Record>>(
    history: &History,
    rules: &Rules,
    rule: Rule,
    records: impl IntoIterator<Item = R>,
) {
    let report = check(history, rules);
    assert_eq!(report.verdict, Verdict::Violated, "{report}");
    assert_eq!(report.broken, BTreeMap::from([(rule, 1)]), "{report}");
    let records: Vec<Record> = records.into_iter().map(Into::into).collect();
    assert_eq!(report.violations[0].records, records, "{report}");
}

#[test]
fn nothing_recorded_is_inconclusive() {
    let report = check(&History::default(), &Rules::default());
    assert_eq!(report.verdict, Verdict::Inconclusive);
    let few = check(&of(&[alone(1, 1, 2)]), &Rules { least: 2, ..Rules::default() });
    assert_eq!(few.verdict, Verdict::Inconclusive);
}

#[test]
fn tokens_are_given_once() {
    let (one, two) = (alone(1, 10, 20), alone(2, 20, 30));
    safe(&of(&[one, two]), &Rules::default());
    // Resources count on their own.
    safe(&of(&[one, Section { resource: 1, ..one }]), &Rules::default());

    let twin = Section { token: 1, floor: 1, ..two };
    breaks(&of(&[one, twin]), &Rules::default(), Rule::TokenTwice, [&one, &twin]);
    // The same acquisition recorded twice is one thing, not two.
    let again = Section { contender: 1, ..twin };
    breaks(&of(&[one, again]), &Rules::default(), Rule::TokenTwice, [&one, &again]);
}

#[test]
fn contenders_are_granted_once() {
    let (one, two) = (alone(1, 10, 20), Section { contender: 1, ..alone(2, 20, 30) });
    safe(&of(&[one, Section { resource: 1, ..two }]), &Rules::default());
    breaks(&of(&[one, two]), &Rules::default(), Rule::ContenderTwice, [&one, &two]);
}

#[test]
fn tokens_grow() {
    // Both readers asked at once, so the answers may overtake each other.
    let (one, two) = (shared(1, 1, 1, 12, 20), shared(2, 1, 1, 11, 20));
    let asked_together = [Section { asked: 5, ..one }, Section { asked: 5, ..two }];
    safe(&of(&asked_together), &Rules::default());

    // Asked at the very moment the other returned is not yet after it.
    safe(&of(&[Section { asked: 11, ..one }, two]), &Rules::default());

    let late = Section { asked: 12, granted: 13, ..one };
    breaks(&of(&[late, two]), &Rules::default(), Rule::TokenFell, [&two, &late]);
}

#[test]
fn tokens_grow_from_holder_to_holder() {
    // Both asked at once; only the order in which they held counts.
    let first = Section { asked: 5, ..alone(2, 10, 20) };
    let second = Section { asked: 5, ..alone(1, 20, 30) };
    breaks(&of(&[first, second]), &Rules::default(), Rule::TokenFell, [&first, &second]);
    let reader = Section { share: Share::Units(1), ..second };
    breaks(&of(&[first, reader]), &Rules::default(), Rule::TokenFell, [&first, &reader]);
    let just_in_time = Section { deadline: 20, ended: 20, ..second };
    breaks(&of(&[first, just_in_time]), &Rules::default(), Rule::TokenFell, [&first, &just_in_time]);

    // At the same instant neither is the first; a worker that slept, or found its lease over when the
    // answer reached it, may have been granted long before.
    let instant = Section { ended: 10, ..first };
    safe(&of(&[instant, Section { granted: 10, ..second }]), &Rules::default());
    safe(
        &of(&[first, Section { deadline: 19, ended: 20, ..second }]),
        &Rules { late: 1, ..Rules::default() },
    );
    let pauses = vec![Pause { worker: 1, from: 6, to: 20 }];
    safe(&of(&[first, second]), &Rules { pauses, ..Rules::default() });
}

#[test]
fn floors_fence_off_all_who_came_before() {
    let (writer, reader, other) = (alone(1, 10, 20), shared(2, 2, 1, 20, 40), shared(3, 2, 1, 21, 40));
    safe(&of(&[writer, reader, other]), &Rules::default());

    let low = Section { floor: 1, ..reader };
    breaks(&of(&[writer, low, other]), &Rules::default(), Rule::Floor, [&writer, &low]);
    let high = Section { floor: 3, ..reader };
    breaks(&of(&[high]), &Rules::default(), Rule::Floor, [&high]);
    let not_own = Section { floor: 0, ..writer };
    breaks(&of(&[not_own]), &Rules::default(), Rule::Floor, [&not_own]);
    let above = write(1, 2, 1, true);
    breaks(&of_writes(&[above]), &Rules::default(), Rule::Floor, [&above]);
}

#[test]
fn exclusive_sections_do_not_overlap() {
    let (one, two) = (alone(1, 10, 20), alone(2, 20, 30));
    safe(&of(&[one, two]), &Rules::default());

    let long = Section { ended: 21, ..one };
    breaks(&of(&[long, two]), &Rules::default(), Rule::Overlap, [&long, &two]);
    let reader = shared(2, 2, 1, 19, 30);
    breaks(&of(&[one, reader]), &Rules::default(), Rule::Overlap, [&one, &reader]);
    // A short section inside a long one, with another in between that is over.
    let (outer, inner) = (Section { ended: 60, ..one }, alone(3, 50, 55));
    let report = check(&of(&[outer, two, inner]), &Rules::default());
    assert_eq!(report.broken, BTreeMap::from([(Rule::Overlap, 2)]), "{report}");
    assert_eq!(report.violations[1].records, [Record::from(&outer), Record::from(&inner)]);
}

#[test]
fn permits_do_not_exceed_the_capacity() {
    let rules = Rules { capacity: HashMap::from([(0, 4)]), ..Rules::default() };
    let (one, two) = (shared(1, 1, 2, 10, 20), shared(2, 1, 2, 11, 20));
    let three = shared(3, 1, 1, 12, 20);
    safe(&of(&[one, two, Section { granted: 20, ..three }]), &rules);
    breaks(&of(&[one, two, three]), &rules, Rule::Overlap, [&one, &two, &three]);
    // Without a number, any readers may share.
    safe(&of(&[one, two, three]), &Rules::default());
}

#[test]
fn a_downgraded_writer_is_a_reader() {
    let writer = Section { share: Share::Downgraded(15), ..alone(1, 10, 30) };
    let reader = shared(2, 1, 1, 15, 30);
    safe(&of(&[writer, reader]), &Rules::default());

    let early = Section { asked: 13, granted: 14, ..reader };
    let report = check(&of(&[writer, early]), &Rules::default());
    assert_eq!(report.violations[0].rule, Rule::Overlap, "{report}");
    let next = alone(2, 29, 40);
    breaks(&of(&[writer, next]), &Rules::default(), Rule::Overlap, [&writer, &next]);
}

#[test]
fn a_paused_worker_is_excused_while_the_fence_holds() {
    let paused = Section { end: End::Lost, deadline: 20, ..alone(1, 10, 50) };
    let next = alone(2, 30, 40);
    let rules = Rules { pauses: vec![Pause { worker: 1, from: 15, to: 50 }], ..Rules::default() };
    let mut history = of(&[paused, next]);

    let report = check(&history, &rules);
    assert_eq!((report.verdict, report.excused), (Verdict::Inconclusive, 1), "no write: {report}");
    history.writes = vec![write(2, 2, 35, true), write(1, 1, 45, false)];
    let report = check(&history, &rules);
    assert_eq!((report.verdict, report.excused), (Verdict::SafeWithFencing, 1), "{report}");
    history.writes[1].accepted = true;
    breaks(&history, &rules, Rule::WentBack, &history.writes);
}

#[test]
fn a_pause_excuses_only_while_it_lasts() {
    let paused = Section { end: End::Lost, deadline: 45, ..alone(1, 10, 45) };
    let next = alone(2, 30, 40);
    let pauses = |pauses: &[(u32, u64, u64)]| Rules {
        pauses: pauses.iter().map(|&(worker, from, to)| Pause { worker, from, to }).collect(),
        ..Rules::default()
    };
    // It ran again at 35 and did not notice.
    let report = check(&of(&[paused, next]), &pauses(&[(1, 15, 20), (1, 18, 35)]));
    assert_eq!(report.broken, BTreeMap::from([(Rule::Overlap, 1)]), "{report}");
    assert_eq!((report.excused, report.violations[0].at), (1, 35));
    // It stopped only after the other had come, or somebody else did.
    breaks(&of(&[paused, next]), &pauses(&[(1, 31, 50)]), Rule::Overlap, [&paused, &next]);
    breaks(&of(&[paused, next]), &pauses(&[(3, 15, 50)]), Rule::Overlap, [&paused, &next]);
}

#[test]
fn accepted_writes_never_go_back() {
    // The readers 2 and 3 hold together, so 2 may follow 3.
    let fine = [write(1, 1, 1, true), write(3, 2, 2, true), write(2, 2, 3, true), write(1, 1, 4, false)];
    safe(&of_writes(&fine), &Rules::default());
    // Two writes with the same place may have come in either order.
    safe(&of_writes(&[write(2, 2, 1, true), write(1, 1, 1, true), write(1, 1, 1, false)]), &Rules::default());

    let back = [write(2, 2, 1, true), write(1, 1, 2, true)];
    breaks(&of_writes(&back), &Rules::default(), Rule::WentBack, &back);
    safe(&of_writes(&[back[0], Write { resource: 1, ..back[1] }]), &Rules::default());
}

#[test]
fn only_stale_writes_are_refused() {
    let equal = [write(2, 2, 1, true), write(2, 2, 2, false)];
    breaks(&of_writes(&equal), &Rules::default(), Rule::Refused, &equal);
    let first = write(1, 1, 1, false);
    breaks(&of_writes(&[first]), &Rules::default(), Rule::Refused, [&first]);
}

#[test]
fn the_lost_signal_comes_before_the_deadline() {
    let lost = Section { end: End::Lost, deadline: 20, ..alone(1, 10, 20) };
    safe(&of(&[lost]), &Rules::default());

    let late = Section { ended: 21, ..lost };
    breaks(&of(&[late]), &Rules::default(), Rule::LateEnd, [&late]);
    safe(&of(&[late]), &Rules { late: 1, ..Rules::default() });
    // No signal at all is no better; only the dead are not told.
    let never = Section { end: End::Open, ..late };
    breaks(&of(&[never]), &Rules::default(), Rule::LateEnd, [&never]);
    let dead = Section { end: End::Crashed, ..late };
    safe(&of(&[dead]), &Rules { crashes: true, ..Rules::default() });
    // A worker that slept must notice as soon as it runs.
    let woken_at = |to| Rules { pauses: vec![Pause { worker: 1, from: 15, to }], ..Rules::default() };
    safe(&of(&[Section { ended: 50, ..late }]), &woken_at(50));
    breaks(&of(&[late]), &woken_at(20), Rule::LateEnd, [&late]);
    // A sleep that began after the deadline is no excuse for an end that was due before.
    let slept_later = Rules { pauses: vec![Pause { worker: 1, from: 21, to: 60 }], ..Rules::default() };
    let late = Section { ended: 50, ..late };
    breaks(&of(&[late]), &slept_later, Rule::LateEnd, [&late]);
}

#[test]
fn every_waiter_is_served_or_gives_up() {
    let gave_up = Wait { worker: 9, resource: 0, asked: 5, gave_up: Some(20) };
    let mut history = History { waits: vec![gave_up], ..of(&[alone(1, 10, 20)]) };
    safe(&history, &Rules::default());

    let forgotten = Wait { gave_up: None, ..gave_up };
    history.waits = vec![forgotten];
    breaks(&history, &Rules::default(), Rule::Unserved, [&forgotten]);
}

#[test]
fn nobody_waits_long_for_what_is_free() {
    let rules = |last_fault| Rules { bound: Some(10), last_fault, ..Rules::default() };
    let (one, two) = (alone(1, 10, 20), Section { asked: 15, ..alone(2, 30, 40) });
    safe(&of(&[one, two]), &rules(0));
    let late = Section { granted: 31, ..two };
    breaks(&of(&[one, late]), &rules(0), Rule::Stalled, [&late]);
    safe(&of(&[one, late]), &rules(21));
    // Held for long is not free, and the lease of one that died runs on.
    safe(&of(&[Section { ended: 21, ..one }, late]), &rules(0));
    let died = Section { end: End::Crashed, deadline: 21, ..one };
    safe(&of(&[died, late]), &Rules { crashes: true, ..rules(0) });
    // Free at first, then held, then free for too long.
    let patient = Section { asked: 15, ..alone(2, 36, 40) };
    breaks(&of(&[alone(1, 20, 25), patient]), &rules(0), Rule::Stalled, [&patient]);
    let in_time = Wait { worker: 9, resource: 0, asked: 20, gave_up: Some(30) };
    safe(&History { waits: vec![in_time], ..of(&[one]) }, &rules(0));
    // Giving up does not make it better; not being able to look does.
    let gave_up = Wait { worker: 9, resource: 7, asked: 5, gave_up: Some(16) };
    let history = History { waits: vec![gave_up], ..of(&[one]) };
    breaks(&history, &rules(0), Rule::Stalled, [&gave_up]);
    safe(&history, &Rules { pauses: vec![Pause { worker: 9, from: 6, to: 8 }], ..rules(0) });
}

#[test]
fn exact_order_where_promised() {
    let (one, two) = (Section { asked: 5, ..alone(1, 10, 20) }, Section { asked: 3, ..alone(2, 20, 30) });
    let fifo = |tolerance| Rules { fifo: HashSet::from([0]), tolerance, ..Rules::default() };
    safe(&of(&[one, two]), &Rules::default());
    safe(&of(&[one, two]), &fifo(2));
    breaks(&of(&[one, two]), &fifo(1), Rule::OutOfOrder, [&one, &two]);
}

#[test]
fn readers_of_a_quorum_may_be_alike() {
    let quorum = Rules { readers_alike: true, ..Rules::default() };
    let writer = alone(3, 22, 24);
    let one = Section { asked: 25, ..shared(4, 1, 1, 27, 40) };
    let two = Section { worker: 9, asked: 26, granted: 28, ..one };
    safe(&of(&[writer, one, two]), &quorum);
    let report = check(&of(&[writer, one, two]), &Rules::default());
    assert_eq!((report.count(Rule::TokenTwice), report.count(Rule::Floor)), (1, 2), "{report}");
    let later = Section { worker: 9, asked: 28, granted: 29, ..one };
    breaks(&of(&[writer, one, later]), &quorum, Rule::TokenTwice, [&one, &later]);
    let high = Section { floor: 5, ..one };
    breaks(&of(&[writer, high]), &quorum, Rule::Floor, [&writer, &high]);
    let second = Section { worker: 9, asked: 15, ..alone(3, 25, 26) };
    breaks(&of(&[writer, second]), &quorum, Rule::TokenTwice, [&writer, &second]);
}

#[test]
fn nobody_dies_unasked() {
    let dead = Section { end: End::Crashed, ..alone(1, 10, 20) };
    safe(&of(&[dead]), &Rules { crashes: true, ..Rules::default() });
    breaks(&of(&[dead]), &Rules::default(), Rule::Crash, [&dead]);
}

#[test]
fn impossible_times_are_named() {
    let backwards = Section { asked: 11, ..alone(1, 10, 20) };
    breaks(&of(&[backwards]), &Rules::default(), Rule::BadRecord, [&backwards]);
    let wait = Wait { worker: 9, resource: 0, asked: 5, gave_up: Some(4) };
    let history = History { waits: vec![wait], ..of(&[alone(1, 10, 20)]) };
    breaks(&history, &Rules::default(), Rule::BadRecord, [&wait]);
}

#[test]
fn the_report_counts_what_it_saw() {
    let lost = Section { end: End::Lost, asked: 3, ..alone(2, 20, 30) };
    let crashed = Section { end: End::Crashed, resource: 1, ..alone(3, 30, 40) };
    let open = Section { end: End::Open, ..alone(4, 40, 50) };
    let history = History {
        sections: vec![alone(1, 10, 20), lost, crashed, open],
        writes: vec![write(2, 2, 1, true), write(3, 3, 2, true), write(1, 1, 3, false)],
        waits: vec![Wait { worker: 9, resource: 0, asked: 5, gave_up: Some(20) }],
    };
    let report = check(&history, &Rules { crashes: true, ..Rules::default() });
    let expected = Report {
        verdict: Verdict::Safe,
        sections: 4,
        lost: 1,
        crashed: 1,
        open: 1,
        resources: 2,
        accepted: 2,
        refused: 1,
        waits: 1,
        longest_wait: 17,
        ..Report::default()
    };
    assert_eq!(report, expected, "{report}");
}

#[test]
fn many_violations_fit_on_a_screen() {
    let all_at_once: Vec<Section> = (1..=1000).map(|token| alone(token, 10, 20)).collect();
    let report = check(&of(&all_at_once), &Rules::default());
    assert_eq!(report.count(Rule::Overlap), 999);
    assert_eq!(report.violations.len(), 10);
    assert!(report.violations.iter().all(|violation| violation.records.len() <= 8));
    let text = report.to_string();
    assert!(text.starts_with("VIOLATED\n1000 sections") && text.lines().count() < 24, "{text}");
}
