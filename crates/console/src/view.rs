//! What pages show, as JSON. Text of others is passed on as it is: pages show it as text and nothing else.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{alarms::Alarm, webhook::WebhookStatus};

pub use crate::{
    hot::By,
    store_words::StoreWord,
    table::{Order, Sort, Totals},
    timeline::{HoldSpan, Lane, Span, Timeline, WaitSpan},
};

/// Which page to show.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Page {
    /// What is locked now.
    #[default]
    Locks,
    /// One lock.
    Lock,
    /// Hot locks.
    Hot,
    /// Alarms.
    Alarms,
    /// The store.
    Store,
}

/// What a page asks for. Each page uses some of it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Query {
    /// The page.
    pub view: Page,
    /// Only locks whose names start with this.
    pub prefix: String,
    /// The order of locks.
    pub sort: Sort,
    /// Its direction.
    pub order: Option<Order>,
    /// The part of the list, from 0.
    pub page: usize,
    /// The lock.
    pub name: String,
    /// How far to look back.
    pub minutes: Option<u64>,
    /// What makes a lock hot.
    pub by: By,
}

/// What a page shows.
#[derive(Clone, Debug, Serialize)]
pub struct View {
    /// What all pages show.
    pub head: Head,
    /// What this page shows.
    #[serde(flatten)]
    pub body: Body,
}

/// What all pages show.
#[derive(Clone, Debug, Serialize)]
pub struct Head {
    /// This moment, in milliseconds since 1970.
    pub now_ms: u64,
    /// The store's URL without secrets.
    pub store: String,
    /// The last sample; null before the first.
    pub sample: Option<SampleInfo>,
    /// Why the store cannot be asked; null if it can.
    pub outage: Option<OutageInfo>,
    /// How many alarms there are.
    pub alarms: usize,
}

/// A sample.
#[derive(Clone, Debug, Serialize)]
pub struct SampleInfo {
    /// How long ago it was taken.
    pub age_ms: u64,
    /// How long it took.
    pub took_ms: u64,
    /// How long after it the next one is taken.
    pub every_ms: u64,
}

/// A store that cannot be asked.
#[derive(Clone, Debug, Serialize)]
pub struct OutageInfo {
    /// Since when, in milliseconds since 1970.
    pub since_ms: u64,
    /// Why.
    pub message: String,
}

/// What one page shows.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "view", content = "body", rename_all = "lowercase")]
pub enum Body {
    /// What is locked now.
    Locks(Locks),
    /// One lock.
    Lock(Box<LockPage>),
    /// Hot locks.
    Hot(HotPage),
    /// Alarms.
    Alarms(AlarmPage),
    /// The store.
    Store(StorePage),
}

/// What is locked now.
#[derive(Clone, Debug, Serialize)]
pub struct Locks {
    /// Counts of everything that the token may see.
    pub totals: Totals,
    /// How many match.
    pub matches: usize,
    /// The part that is shown, from 0.
    pub page: usize,
    /// How many rows a part has.
    pub page_size: usize,
    /// The rows.
    pub rows: Vec<Row>,
}

/// A lock or a latch.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// `mutex`, `rw_lock`, `semaphore`, `election` or `latch`.
    pub kind: &'static str,
    /// How much there is: `all`, or a number.
    pub capacity: String,
    /// Some of its holders, by token.
    pub holders: Vec<Holder>,
    /// How many holders it has.
    pub holder_count: usize,
    /// How many waiters it has.
    pub waiters: usize,
    /// How long the first of them waits.
    pub longest_wait_ms: Option<u64>,
    /// What is left to count, of a latch.
    pub remaining: Option<u64>,
    /// What a latch was created with.
    pub initial: Option<u64>,
    /// Whether there is an alarm about it.
    pub alarm: bool,
}

/// Somebody who holds.
#[derive(Clone, Debug, Serialize)]
pub struct Holder {
    /// The program.
    pub program: String,
    /// The host.
    pub host: String,
    /// The process; 0 if it is not known.
    pub pid: u32,
    /// Its own words.
    pub label: Option<String>,
    /// What a leader publishes.
    pub value: Option<String>,
    /// The fencing token.
    pub token: String,
    /// How long it holds.
    pub held_ms: u64,
    /// The length of its lease.
    pub lease_ms: u64,
    /// What is left of its lease; null if the store cannot tell.
    pub left_ms: Option<u64>,
    /// How much it holds: `all`, or a number.
    pub units: String,
    /// Whether its process renews the lease.
    pub renewed: bool,
    /// Whether its process should have renewed the lease before.
    pub late: bool,
    /// Whether an operator wants the lock back.
    pub evicted: bool,
    /// Whether only its lease ends it.
    pub detached: bool,
}

/// Somebody who waits.
#[derive(Clone, Debug, Serialize)]
pub struct Waiter {
    /// The program.
    pub program: String,
    /// The host.
    pub host: String,
    /// The process; 0 if it is not known.
    pub pid: u32,
    /// Its own words.
    pub label: Option<String>,
    /// How long it waits.
    pub waited_ms: u64,
    /// How much it asks for: `all`, or a number.
    pub units: String,
}

/// One lock.
#[derive(Clone, Debug, Serialize)]
pub struct LockPage {
    /// The lock; null if it is free. A latch, if there is only that.
    pub lock: Option<Row>,
    /// The latch, if there is one beside a lock of the same name.
    pub latch: Option<LatchCount>,
    /// Its name.
    pub name: String,
    /// Those of its waiters that are first in the queue.
    pub queue: Vec<Waiter>,
    /// Its history.
    pub timeline: Timeline,
    /// What it means for its users, as sentences.
    pub meaning: Vec<String>,
    /// Alarms about it.
    pub alarms: Vec<Alarm>,
    /// How much history is kept, as sentences.
    pub kept: String,
}

/// How far a latch has been counted down.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct LatchCount {
    /// What is left to count.
    pub remaining: u64,
    /// What it was created with.
    pub initial: u64,
}

/// Hot locks.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct HotPage {
    /// How far back it looks.
    pub minutes: u64,
    /// What makes a lock hot.
    pub by: By,
    /// The hottest first.
    pub locks: Vec<HotLock>,
    /// How much history is kept, as sentences.
    pub kept: String,
}

/// A hot lock.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct HotLock {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: &'static str,
    /// How long its waiters waited, all of them together.
    pub waited_ms: u64,
    /// The most waiters at a time.
    pub waiters: u32,
    /// How often another token was seen.
    pub changes: u32,
    /// How many wait now.
    pub waiting: usize,
    /// Why it is hot.
    pub why: String,
    /// What helps.
    pub helps: String,
    /// The same numbers over time, in order.
    pub curve: Vec<Point>,
}

/// One step of a curve.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub struct Point {
    /// How long waiters waited, all of them together.
    pub waited_ms: u64,
    /// The most waiters at a time.
    pub waiters: u32,
    /// How often another token was seen.
    pub changes: u32,
}

/// Alarms.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct AlarmPage {
    /// Those that last, the oldest first.
    pub active: Vec<Alarm>,
    /// How many more there are: at most 1,000 of a kind are told.
    pub left_off: usize,
    /// Those that are over, the last one first.
    pub ended: Vec<Alarm>,
    /// The limits, in the order in which they are tried.
    pub limits: Vec<LimitRow>,
    /// Whether the token is for some names only: then it sees the limits of these, and nothing of the file and the webhook.
    pub restricted: bool,
    /// The file that they come from; null without one.
    pub file: Option<String>,
    /// Why the file cannot be used; null if it can.
    pub file_error: Option<String>,
    /// The webhook; null without one.
    pub webhook: Option<WebhookStatus>,
}

/// Limits for some names.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, ToSchema)]
pub struct LimitRow {
    /// Patterns of names.
    pub names: String,
    /// How long a lock may be held; null if this row does not say.
    pub held: Option<String>,
    /// How long somebody may wait.
    pub waited: Option<String>,
    /// How many may wait.
    pub waiters: Option<String>,
    /// Whether late renewals are reported: `on` or `off`.
    pub renewal: Option<String>,
}

/// The store.
#[derive(Clone, Debug, Serialize)]
pub struct StorePage {
    /// Its URL without secrets.
    pub url: String,
    /// Its kind, such as `redis`.
    pub kind: &'static str,
    /// What it can do and survive, in words.
    pub words: Vec<StoreWord>,
    /// Its servers, if it has any.
    pub servers: Vec<ServerRow>,
    /// What the doctor found.
    pub findings: Vec<FindingRow>,
    /// When the doctor looked last; null if it has not looked yet.
    pub checked_ms: Option<u64>,
    /// Whether the doctor has checks for such a store.
    pub is_checked: bool,
    /// Why the doctor could not look the last time; null if it could.
    pub check_error: Option<String>,
    /// How much history is kept, as sentences.
    pub kept: String,
}

/// A server of the store.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ServerRow {
    /// Its address.
    pub server: String,
    /// Whether it answers.
    pub answers: bool,
    /// What it is, in a few words.
    pub words: String,
    /// How much the doctor found there.
    pub warnings: usize,
}

/// Something that the doctor found.
#[derive(Clone, Debug, Serialize)]
pub struct FindingRow {
    /// The server or member; null if there is one only.
    pub server: Option<String>,
    /// What it is and what to do.
    pub message: String,
}
