//! A member's wall clock is set wrong while a crew works.

use lockkeeper_testkit::{
    history::{Loss, Verdict},
    load::{crew, task, times},
    processes::Task,
    servers::RedisOptions,
};

use crate::{
    WORKER,
    crews::{evidence, go_on, now},
    members::{Member, Members},
};

/// One member's grants end an hour early, or last an hour longer. The others are a majority, and the median of the
/// clocks is theirs. Locks that the member gave away too early are excused as a loss; a fence must reject late writes.
#[test]
fn an_hour_forward_and_back_at_one_member_takes_no_token_back() {
    let each = (0..5).map(|_| Member::start(RedisOptions::default().movable_clock()).expect("started"));
    let (members, folder) = (Members::of(each.collect()), tempfile::tempdir().expect("a folder"));
    let task = Task { resources: 4, tasks: 2, ..task(&members.url(), &folder) };
    let (lease, mut losses) = (task.lease.as_nanos() as u64, Vec::new());
    let mut crew = crew(WORKER, task, 6);
    go_on(&mut crew, 100);
    for round in 0..times(1, 10) {
        // Each of the members is the gate of some names.
        let member = &members.each[round % 5];
        for shift in [3600, 0, -3600, 0] {
            let from = now();
            member.server.shift_clock(shift).expect("shifted");
            let to = now();
            losses.push(Loss { from, to, told: to + lease, old_copy: false });
            go_on(&mut crew, 50);
        }
    }
    crew.store_recovered();
    go_on(&mut crew, 100);
    let report = evidence(crew, 300, losses);
    let kept = matches!(report.verdict, Verdict::Safe | Verdict::SafeWithFencing);
    assert!(kept && report.accepted > 0, "{report}");
}
