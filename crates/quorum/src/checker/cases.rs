//! The worlds that are explored, and the mistakes that are refuted.

use lockkeeper_core::Capacity;

use super::{
    Fault, Quorum,
    explore::{explore, prove, refute, soaks},
    member::Record,
    promises::{CAPACITY, ENDS, EVICTED, EXCLUSION, FLOORS, FLOORS_GROW, TOKENS},
    world::{Step, Who, World},
};
use crate::attempt::Mistake;

/// Messages may be slow and lost. The two suspect different members, so that no gate puts them in order.
fn two_writers() -> World {
    let other = Who { members: vec![2, 1, 0], ..Who::exclusive() };
    let one = Who { leaves: false, ..Who::exclusive() };
    World { marks: vec![vec![0, 4, 0]], last_tick: 0, ..World::of(vec![one, other]) }
}

/// Both wait in the queue of the same member, which one of them may come to suspect.
fn a_queue() -> World {
    let second = Who { leaves: false, ..Who::exclusive() };
    World { last_tick: 0, ..World::of(vec![Who::exclusive(), second]) }
}

/// The same when one of the two comes to suspect the gate.
fn another_gate() -> World {
    let clients = vec![Who { leaves: false, ..Who::exclusive() }; 2];
    let prefix = vec![Step::Begin(0), Step::Do(0, 1), Step::Begin(1), Step::Do(1, 2)];
    World { gate_changes: 1, prefix, clients, ..a_queue() }
}

/// Both wait in the queue of the same member, ask it first, and ask all when it says that it has granted.
fn a_queue_at_the_gate() -> World {
    let first = Who { asks_gate_first: true, ..Who::exclusive() };
    let second = Who { leaves: false, ..first.clone() };
    World { marks: vec![vec![0, 4, 0]], last_tick: 0, ..World::of(vec![first, second]) }
}

/// The same with a contender that has another gate and asks all at once.
fn a_queue_beside_another_gate() -> World {
    let first = Who { asks_gate_first: true, ..Who::exclusive() };
    let other = Who { members: vec![2, 1, 0], leaves: false, ..Who::exclusive() };
    World { last_tick: 0, ..World::of(vec![first, other]) }
}

/// A contender without a majority gives way and comes again.
fn giving_way() -> World {
    let one = Who { leaves: false, ..Who::exclusive() };
    let other = Who { members: vec![2, 1, 0], gives_way: 1, begins: 9, leaves: false, ..Who::exclusive() };
    let prefix = vec![
        Step::Begin(1),
        Step::Do(1, 0),
        Step::Begin(0),
        Step::Do(0, 1),
        Step::Do(0, 0),
        Step::Tick,
        Step::Tick,
        Step::GiveWay(1),
    ];
    World { last_tick: 2, prefix, ..World::of(vec![one, other]) }
}

/// A reader that lags, and a writer.
fn reader_and_writer() -> World {
    let reader = Who { leaves: false, ..Who::reader() };
    let writer = Who { members: vec![2, 1, 0], ..Who::exclusive() };
    World { last_tick: 0, ..World::of(vec![reader, writer]) }
}

/// Two readers whose members have different marks.
fn two_readers() -> World {
    let one = Who { leaves: false, ..Who::reader() };
    let other = Who { members: vec![1, 0, 2], leaves: false, ..Who::reader() };
    World { marks: vec![vec![0, 8, 5]], last_tick: 0, silences: 1, ..World::of(vec![one, other]) }
}

/// Other names of the same members are busy all the while, so that marks grow.
fn busy_names() -> World {
    World { marks: vec![vec![0, 8, 5]], last_tick: 0, bumps: 5, ..World::of(vec![Who::reader()]) }
}

/// Leases that end.
fn expiry() -> World {
    let one = Who { leaves: false, ..Who::exclusive() };
    let other = Who { members: vec![2, 1, 0], begins: 9, leaves: false, ..Who::exclusive() };
    let prefix = vec![Step::Begin(0), Step::Do(0, 0), Step::Do(0, 1)];
    World { lease: 1, last_tick: 1, prefix, ..World::of(vec![one, other]) }
}

/// Another process goes on with a lease, beside another contender.
fn adoption() -> World {
    let one = Who { adopts: true, leaves: false, ..Who::exclusive() };
    let other = Who { members: vec![2, 1, 0], begins: 9, leaves: false, ..Who::exclusive() };
    let prefix = vec![Step::Begin(0), Step::Do(0, 0), Step::Do(0, 1), Step::Do(0, 2)];
    World { lease: 1, last_tick: 1, prefix, ..World::of(vec![one, other]) }
}

/// Members restart without data, one at a time.
fn restarts() -> World {
    let one = Who { leaves: false, ..Who::exclusive() };
    let other = Who { members: vec![2, 1, 0], begins: 9, leaves: false, ..Who::exclusive() };
    let prefix = vec![Step::Begin(0), Step::Do(0, 0), Step::Do(0, 1), Step::Restart(1)];
    World { lease: 1, last_tick: 2, restarts: 1, prefix, ..World::of(vec![one, other]) }
}

/// The first was told by members 0 and 1 and has left. Member 1 lost its data since, and was watched for long enough.
fn after_a_restart() -> World {
    let one = Who { begins: 0, ..Who::exclusive() };
    let other = Who { members: vec![2, 1, 0], begins: 9, leaves: false, ..Who::exclusive() };
    let prefix = vec![
        Step::Begin(0),
        Step::Do(0, 0),
        Step::Do(0, 1),
        Step::Leave(0),
        Step::Do(0, 0),
        Step::Do(0, 1),
        Step::Restart(1),
        Step::Watch(1),
        Step::Tick,
        Step::Tick,
    ];
    World {
        marks: vec![vec![3, 3, 0]],
        lease: 1,
        last_tick: 2,
        restarts: 1,
        prefix,
        ..World::of(vec![one, other])
    }
}

/// A holder renews while a member restarts, is claimed at again, and votes again.
fn healing() -> World {
    let one = Who { renewals: 3, leaves: false, ..Who::exclusive() };
    let prefix = vec![
        Step::Begin(0),
        Step::Do(0, 0),
        Step::Do(0, 1),
        Step::Do(0, 2),
        Step::Restart(1),
        Step::Watch(1),
        Step::Tick,
        Step::Renew(0),
    ];
    World { lease: 2, last_tick: 3, restarts: 1, prefix, ..World::of(vec![one]) }
}

/// An operator takes the lock back at once.
fn eviction() -> World {
    let holder = Who { renewals: 2, leaves: false, ..Who::exclusive() };
    let prefix = vec![Step::Begin(0), Step::Do(0, 0), Step::Do(0, 1)];
    World { evicts: true, last_tick: 0, prefix, ..World::of(vec![holder]) }
}

/// An operator has taken the lock back, and tombstones have ended.
fn after_an_eviction() -> World {
    let holder = Who { renewals: 2, leaves: false, ..Who::exclusive() };
    let prefix = vec![
        Step::Begin(0),
        Step::Do(0, 0),
        Step::Do(0, 1),
        Step::Do(0, 2),
        Step::Remove(0),
        Step::Remove(1),
        Step::Remove(2),
        Step::Tick,
        Step::Tick,
    ];
    World { evicts: true, last_tick: 2, prefix, ..World::of(vec![holder]) }
}

/// The same, of a contender that does not hold yet, while another comes.
fn eviction_beside_another() -> World {
    let one = Who { leaves: false, ..Who::exclusive() };
    let other = Who { members: vec![2, 1, 0], leaves: false, ..Who::exclusive() };
    let prefix = vec![Step::Begin(0), Step::Do(0, 0), Step::Do(0, 1), Step::Begin(1)];
    World { marks: vec![vec![8, 4, 0]], evicts: true, last_tick: 0, prefix, ..World::of(vec![one, other]) }
}

/// Two clients whose quorums share two of three members.
fn unequal_sets() -> World {
    let other = Who { members: vec![3, 2, 1], quorum: Quorum::Other, ..Who::exclusive() };
    let votes = |quorum| Some(Record::voting(quorum));
    let (one, two) = (votes(Quorum::One), votes(Quorum::Other));
    let records = vec![one, one, one, two];
    World { marks: vec![vec![0; 4]], records, last_tick: 1, ..World::of(vec![Who::exclusive(), other]) }
}

/// The same, and nobody has founded a quorum yet.
fn founding() -> World {
    World { records: vec![None; 4], founds: true, last_tick: 0, ..unequal_sets() }
}

/// The first member is replaced by a fourth one, while a client of the old quorum still reaches it.
fn replacement() -> World {
    let old = Who { leaves: false, ..Who::exclusive() };
    let new =
        Who { members: vec![3, 2, 1], quorum: Quorum::Other, begins: 9, leaves: false, ..Who::exclusive() };
    let votes = Some(Record::voting(Quorum::One));
    let records = vec![votes, votes, votes, None];
    let (marks, prefix) = (vec![vec![3, 3, 3, 0]], vec![Step::Begin(0), Step::Do(0, 0), Step::Do(0, 1)]);
    World { marks, records, replaces: true, lease: 1, last_tick: 2, prefix, ..World::of(vec![old, new]) }
}

/// Another server gets the member id of the first place, while a client still reaches the one before. The others count
/// for both. The client holds by members 0 and 1. Members 1 and 2 know of the new server since tick 0, and the client
/// renews at tick 2.
fn new_id() -> World {
    let old = Who { renewals: 1, leaves: false, ..Who::exclusive() };
    let new =
        Who { members: vec![3, 2, 1], quorum: Quorum::Other, begins: 9, leaves: false, ..Who::exclusive() };
    let prefix = vec![
        Step::Begin(0),
        Step::Do(0, 0),
        Step::Do(0, 1),
        Step::Record(1),
        Step::Record(2),
        Step::Tick,
        Step::Tick,
        Step::Renew(0),
    ];
    World { learns: true, lease: 3, last_tick: 4, clients: vec![old, new], prefix, ..replacement() }
}

/// The same, and nobody knows of the new server yet.
fn a_server_takes_over() -> World {
    let old = Who { renewals: 1, leaves: false, ..Who::exclusive() };
    World { learns: true, clients: vec![old, replacement().clients[1].clone()], ..replacement() }
}

/// Two permits and three that want one, each with another gate.
fn semaphore() -> World {
    let permit = |members: [usize; 3]| Who { members: members.into(), leaves: false, ..Who::reader() };
    let clients = vec![permit([0, 1, 2]), permit([1, 2, 0]), permit([2, 0, 1])];
    World { capacity: Capacity::count(2).expect("two"), last_tick: 0, ..World::of(clients) }
}

#[test]
fn two_writers_are_sound() {
    prove("two writers", two_writers());
}

#[test]
fn a_line_is_sound() {
    prove("a queue", a_queue());
    prove("another gate", another_gate());
    prove("another gate and back", World { gate_changes: 2, ..another_gate() });
}

#[test]
fn asking_the_gate_first_is_sound() {
    prove("in the queue of one gate, which is asked first", a_queue_at_the_gate());
    prove("the same beside another gate", a_queue_beside_another_gate());
}

#[test]
fn giving_way_is_sound() {
    prove("giving way", giving_way());
}

#[test]
fn a_reader_and_a_writer_are_sound() {
    prove("a reader and a writer", reader_and_writer());
}

#[test]
fn two_readers_are_sound() {
    prove("two readers", two_readers());
}

#[test]
fn another_process_goes_on_with_a_lease() {
    prove("adoption", adoption());
}

#[test]
fn expiry_is_sound() {
    prove("expiry", expiry());
}

#[test]
fn restarts_are_sound() {
    prove("restarts", restarts());
    prove("after a restart", after_a_restart());
}

#[test]
fn healing_is_sound() {
    prove("healing", healing());
}

#[test]
fn evictions_are_sound() {
    prove("eviction", eviction());
    prove("after an eviction", after_an_eviction());
    prove("eviction beside another", eviction_beside_another());
}

#[test]
fn quorums_that_share_members_are_sound() {
    prove("unequal sets", unequal_sets());
    prove("founding", founding());
}

#[test]
fn a_replacement_is_sound() {
    prove("replacement", replacement());
}

#[test]
fn a_new_id_is_sound() {
    prove("a new id", new_id());
}

#[test]
fn counting_two_servers_at_one_place_is_refuted() {
    refute(new_id().with(Fault::CountsBoth), EXCLUSION);
    refute(a_server_takes_over().with(Fault::ReplaceAtOnce), EXCLUSION);
}

#[test]
fn votes_checked_before_the_claim_are_refuted() {
    refute(restarts().with(Fault::VotesBeforeClaim), EXCLUSION);
}

#[test]
fn uptime_as_a_server_tells_it_is_refuted() {
    refute(restarts().with(Fault::Uptime), EXCLUSION);
    refute(restarts().with(Fault::RejoinAtOnce), EXCLUSION);
}

#[test]
fn unequal_member_sets_are_refuted() {
    refute(unequal_sets().with(Fault::UnequalSets), EXCLUSION);
    refute(founding().with(Fault::FoundOneByOne), EXCLUSION);
}

#[test]
fn late_answers_are_refuted() {
    refute(late_answers().with(Fault::Attempt(Mistake::LateAnswers)), EXCLUSION);
}

/// At tick 1 the first has left member 1, which said before that it held there; the second holds members 1 and 2, and
/// its hold of the gate is about to end.
fn late_answers() -> World {
    let one = Who { lags: true, renewals: 1, leaves: false, ..Who::exclusive() };
    let other = Who { members: vec![2, 1, 0], renewals: 1, leaves: false, ..Who::exclusive() };
    let prefix = vec![
        Step::Begin(1),
        Step::Do(1, 0),
        Step::Begin(0),
        Step::Tick,
        Step::Do(0, 1),
        Step::Renew(0),
        Step::Arrive(0, 1),
        Step::Do(0, 0),
        Step::Do(0, 1),
        Step::Do(1, 1),
        Step::Do(1, 2),
        Step::Renew(1),
        Step::Do(1, 1),
        Step::Do(1, 2),
    ];
    World { marks: vec![vec![0, 4, 0]], prefix, ..World::of(vec![one, other]) }
}

#[test]
fn late_answers_that_are_ignored_are_sound() {
    prove("late answers", late_answers());
}

#[test]
fn creating_again_alone_is_refuted() {
    refute(after_an_eviction().with(Fault::Attempt(Mistake::CreateAgainAlone)), EVICTED);
}

#[test]
fn an_eviction_without_tombstones_is_refuted() {
    refute(eviction().with(Fault::EvictionWithoutTombstones), EVICTED);
}

#[test]
fn a_reused_id_is_refuted() {
    refute(giving_way().with(Fault::ReusedId), EXCLUSION);
    refute(giving_way().with(Fault::Attempt(Mistake::ClaimBeforeLeft)), EXCLUSION);
}

#[test]
fn no_write_back_is_refuted() {
    refute(two_writers().with(Fault::Attempt(Mistake::NoWriteBack)), TOKENS);
}

/// At tick 3 the first has lost its hold at member 0, and has its gate.
fn a_lost_member() -> World {
    let one = Who { members: vec![1, 0, 2], leaves: false, ..Who::exclusive() };
    let other = Who { members: vec![2, 0, 1], begins: 3, ..Who::exclusive() };
    let prefix = vec![
        Step::Begin(0),
        Step::Do(0, 0),
        Step::Tick,
        Step::Tick,
        Step::Poll(0),
        Step::Tick,
        Step::Do(0, 1),
    ];
    World { marks: vec![vec![0, 0, 7]], prefix, ..World::of(vec![one, other]) }
}

#[test]
fn a_target_of_lost_holds_is_refuted() {
    prove("a lost member", a_lost_member());
    refute(a_lost_member().with(Fault::Attempt(Mistake::TargetOfLostHolds)), TOKENS);
}

#[test]
fn settling_without_a_hold_is_refuted() {
    refute(eviction_beside_another().with(Fault::SettleWithoutHolding), TOKENS);
}

/// The first reader was told 5 by members 0 and 1, and shows 9 at member 2. The second was told 10 by members 1 and 2.
fn readers_then_a_writer() -> World {
    let one = Who { renewals: 1, ..Who::reader() };
    let two = Who { members: vec![2, 1, 0], ..Who::reader() };
    let three = Who { members: vec![2, 0, 1], ..Who::exclusive() };
    let prefix = vec![
        Step::Begin(0),
        Step::Do(0, 0),
        Step::Do(0, 1),
        Step::Do(0, 2),
        Step::Begin(1),
        Step::Do(1, 2),
        Step::Do(1, 1),
        Step::Do(1, 1),
        Step::Renew(0),
        Step::Do(0, 2),
        Step::Leave(0),
        Step::Leave(1),
    ];
    World { marks: vec![vec![4, 4, 8]], last_tick: 0, prefix, ..World::of(vec![one, two, three]) }
}

#[test]
fn lowering_a_number_is_refuted() {
    prove("readers, then a writer", readers_then_a_writer());
    refute(readers_then_a_writer().with(Fault::LowerNumbers), TOKENS);
}

#[test]
fn rejoining_without_marks_is_refuted() {
    refute(after_a_restart().with(Fault::RejoinWithoutMarks), TOKENS);
}

#[test]
fn votes_for_old_grants_are_refuted() {
    refute(restarts().with(Fault::Attempt(Mistake::VotesForOldGrants)), TOKENS);
    refute(replacement().with(Fault::Attempt(Mistake::VotesForOldGrants)), TOKENS);
}

#[test]
fn grant_time_floors_are_refuted() {
    refute(reader_and_writer().with(Fault::Attempt(Mistake::GrantTimeFloors)), FLOORS_GROW);
}

/// The first reader was told 5 by members 0 and 1, and by the mistake by 1 and 2. At tick 3 it has lost member 0.
fn a_reader_that_lost_a_member() -> World {
    let one = Who { members: vec![1, 0, 2], renewals: 1, leaves: false, ..Who::reader() };
    let two = Who { members: vec![2, 0, 1], begins: 3, ..Who::reader() };
    let prefix = vec![
        Step::Begin(0),
        Step::Do(0, 1),
        Step::Do(0, 0),
        Step::Do(0, 2),
        Step::Tick,
        Step::Renew(0),
        Step::Do(0, 1),
        Step::Do(0, 2),
        Step::Tick,
        Step::Tick,
    ];
    World { marks: vec![vec![0, 4, 8]], prefix, ..World::of(vec![one, two]) }
}

#[test]
fn readers_that_count_any_number_are_refuted() {
    prove("a reader that lost a member", a_reader_that_lost_a_member());
    let fault = Fault::Attempt(Mistake::ReadersCountAnyNumber);
    refute(a_reader_that_lost_a_member().with(fault), FLOORS);
}

#[test]
fn a_shrinking_target_is_refuted() {
    refute(two_readers().with(Fault::Attempt(Mistake::ShrinkingTarget)), FLOORS);
}

#[test]
fn settling_by_the_grant_formula_is_refuted() {
    prove("busy names", busy_names());
    refute(busy_names().with(Fault::SettleByGrantFormula), ENDS);
}

#[test]
fn a_semaphore_of_two_is_refuted() {
    refute(semaphore(), CAPACITY);
}

#[test]
fn a_replacement_that_votes_at_once_is_refuted() {
    refute(replacement().with(Fault::ReplaceAtOnce), EXCLUSION);
}

/// The same worlds with slow answers too, without their prefixes, and with longer leases. The latter are too large for
/// all of their states to be visited.
#[test]
fn large_worlds_are_sound() {
    if !soaks() {
        return;
    }
    let lagging = |mut world: World| {
        world.clients[0].lags = true;
        world
    };
    let from_the_start = |world: World| World { prefix: Vec::new(), ..world };
    prove("a reader that lags, and a writer", lagging(reader_and_writer()));
    prove("two writers, one lags", lagging(two_writers()));
    explore("giving way, from the start", from_the_start(giving_way()));
    explore("another gate, from the start", from_the_start(another_gate()));
    explore("expiry, from the start", from_the_start(expiry()));
    explore("restarts, from the start", from_the_start(restarts()));
    explore("replacement, from the start", from_the_start(replacement()));
    explore("restarts, leases of three ticks", World { lease: 3, last_tick: 4, ..restarts() });
}
