//! The excuses of a store that lost data or time, and their limits.

use super::*;

const STEPS: u64 = lockkeeper_core::Token::STEPS as u64;

/// Sections and writes of the first step of a grant, by its number.
fn alone(number: u64, granted: u64, ended: u64) -> Section {
    super::alone(number * STEPS, granted, ended)
}

fn shared(number: u64, floor: u64, units: u32, granted: u64, ended: u64) -> Section {
    super::shared(number * STEPS, floor * STEPS, units, granted, ended)
}

/// The store loses grants from 100 to 200; all are told by 300.
fn losing(old_copy: bool) -> Rules {
    Rules { losses: vec![Loss { from: 100, to: 200, told: 300, old_copy }], ..Rules::default() }
}

#[track_caller]
fn excused(sections: &[Section], rules: &Rules) {
    let (first, last) = (sections[0], sections[sections.len() - 1]);
    let writes = vec![write(first.token, first.floor, 1, true), write(last.token, last.floor, 2, true)];
    let report = check(&History { writes, ..of(sections) }, rules);
    assert_eq!(report.verdict, Verdict::SafeWithFencing, "{report}");
    let report = check(&of(sections), &Rules::default());
    assert_eq!(report.verdict, Verdict::Violated, "without the loss: {report}");
}

#[test]
fn a_lost_grant_may_overlap_until_its_holder_is_told() {
    let (old, new) = (alone(1, 90, 280), alone(2, 220, 250));
    excused(&[old, new], &losing(false));
    let while_it_was_lost = Section { asked: 150, granted: 160, ..old };
    excused(&[while_it_was_lost, new], &losing(false));

    let untold = Section { ended: 310, ..old };
    let after = alone(2, 305, 320);
    breaks(&of(&[untold, after]), &losing(false), Rule::Overlap, [&untold, &after]);
    let before = alone(2, 95, 98);
    breaks(&of(&[old, before]), &losing(false), Rule::Overlap, [&old, &before]);
    let asked_later = Section { asked: 201, ..alone(1, 202, 280) };
    breaks(&of(&[asked_later, new]), &losing(false), Rule::Overlap, [&asked_later, &new]);
}

#[test]
fn the_answers_of_two_who_hold_the_same_may_overtake_each_other() {
    let first = alone(2, 210, 220);
    let overtaken = Section { asked: 190, ..alone(1, 230, 240) };
    excused(&[overtaken, first], &losing(false));

    let asked_later = Section { asked: 205, ..overtaken };
    breaks(&of(&[first, asked_later]), &losing(false), Rule::TokenFell, [&first, &asked_later]);
    let long_told = Section { asked: 190, ..alone(1, 301, 310) };
    breaks(&of(&[first, long_told]), &losing(false), Rule::TokenFell, [&first, &long_told]);
    // A token that had returned before another was asked for is smaller, lost or not.
    let (seen, fallen) = (alone(2, 150, 155), alone(1, 160, 170));
    breaks(&of(&[seen, fallen]), &losing(true), Rule::TokenFell, [&seen, &fallen]);
}

/// A lost grant is handed on inside the process that does not know, with the number that it has.
#[test]
fn a_lost_grant_may_be_handed_on() {
    let step = |number: u64, step: u64, asked: u64| {
        let token = number * STEPS + step;
        Section { asked, ..super::alone(token, asked + 1, asked + 10) }
    };
    let (first, other) = (alone(2, 91, 210), alone(3, 215, 225));
    excused(&[first, step(2, 1, 220), other], &losing(false));
    // A grant that nobody had before; or one whose last holder has been told by now.
    let not_lost = step(1, 1, 220);
    let report = check(&of(&[first, not_lost, other]), &losing(false));
    assert_eq!(report.count(Rule::TokenFell), 1, "{report}");
    let told = step(2, 1, 305);
    breaks(&of(&[first, other, told]), &losing(false), Rule::TokenFell, [&other, &told]);
}

/// A reader has left and a writer has come; the copy knows only the reader.
#[test]
fn an_old_copy_may_know_a_reader_and_not_the_writer_after_it() {
    let (reader, writer) = (shared(1, 1, 1, 80, 90), alone(2, 110, 120));
    let next = shared(3, 1, 1, 220, 230);
    excused(&[reader, writer, next], &losing(true));
    breaks(&of(&[reader, writer, next]), &losing(false), Rule::Floor, [&writer, &next]);

    // One loss after another, the second before all have been told of the first.
    let earlier = Loss { from: 10, to: 50, told: 225, old_copy: true };
    let losses = vec![earlier, losing(true).losses[0]];
    excused(&[reader, writer, next], &Rules { losses, ..Rules::default() });

    // That reader's lease has ended; or the copy knew the writer, who had come before or after.
    let late = shared(3, 1, 1, 301, 310);
    breaks(&of(&[reader, writer, late]), &losing(true), Rule::Floor, [&writer, &late]);
    let known = alone(2, 95, 98);
    breaks(&of(&[reader, known, next]), &losing(true), Rule::Floor, [&known, &next]);
    let known = Section { asked: 201, ..alone(2, 210, 215) };
    breaks(&of(&[reader, known, next]), &losing(true), Rule::Floor, [&known, &next]);
    // A writer has no older holder beside it, and a floor is never above its token.
    let alone_with_others = Section { floor: STEPS, ..alone(3, 220, 230) };
    breaks(&of(&[writer, alone_with_others]), &losing(true), Rule::Floor, [&writer, &alone_with_others]);
    let above = Section { floor: 4 * STEPS, ..next };
    breaks(&of(&[writer, above]), &losing(true), Rule::Floor, [&writer, &above]);
}

#[test]
fn a_loss_excuses_no_write_and_no_late_signal() {
    let (old, new) = (alone(1, 90, 280), alone(2, 220, 250));
    let writes = vec![write(2, 2, 1, true), write(1, 1, 2, true)];
    breaks(&History { writes: writes.clone(), ..of(&[old, new]) }, &losing(true), Rule::WentBack, &writes);
    let late = Section { deadline: 150, end: End::Lost, ..old };
    let report = check(&of(&[late]), &losing(true));
    assert_eq!(report.broken, BTreeMap::from([(Rule::LateEnd, 1)]), "{report}");
}
