//! The contents of pages, as JSON. Text of clients is passed on as it is: pages show it as text and nothing else.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{alarms::Alarm, webhook::WebhookStatus};

pub use crate::{
    hot::By,
    store_words::StoreWord,
    table::{Order, Sort, Totals},
    timeline::{HoldSpan, Lane, Span, Timeline, WaitSpan},
};

/// The page to show.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Page {
    /// The locks and latches of now.
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

/// The query of a page. Each page uses some of its fields.
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
    /// How many minutes to look back.
    pub minutes: Option<u64>,
    /// The measure that makes a lock hot.
    pub by: By,
}

/// The content of a page.
#[derive(Clone, Debug, Serialize)]
pub struct View {
    /// The part that all pages show.
    pub head: Head,
    /// The part of this page.
    #[serde(flatten)]
    pub body: Body,
}

/// The part that all pages show.
#[derive(Clone, Debug, Serialize)]
pub struct Head {
    /// This moment, in milliseconds since 1970.
    pub now_ms: u64,
    /// The store's URL without secrets.
    pub store: String,
    /// The last sample; null before the first.
    pub sample: Option<SampleInfo>,
    /// The outage of the store; null if it can be asked.
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
    /// The pause until the next one.
    pub every_ms: u64,
}

/// A store that cannot be asked.
#[derive(Clone, Debug, Serialize)]
pub struct OutageInfo {
    /// The moment at which it began, in milliseconds since 1970.
    pub since_ms: u64,
    /// The error.
    pub message: String,
}

/// The part of one page.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "view", content = "body", rename_all = "lowercase")]
pub enum Body {
    /// The locks and latches of now.
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

/// The list of the locks and latches of now.
#[derive(Clone, Debug, Serialize)]
pub struct Locks {
    /// Counts of everything that the token may see.
    pub totals: Totals,
    /// How many names match.
    pub matches: usize,
    /// The number of the part that is shown, from 0.
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
    /// The capacity that its holders share: `all`, or a number.
    pub capacity: String,
    /// Some of its holders, by token.
    pub holders: Vec<Holder>,
    /// How many holders it has.
    pub holder_count: usize,
    /// How many waiters it has.
    pub waiters: usize,
    /// How long the first of them waits.
    pub longest_wait_ms: Option<u64>,
    /// The count of a latch that is left.
    pub remaining: Option<u64>,
    /// The count that a latch was created with.
    pub initial: Option<u64>,
    /// Whether there is an alarm about it.
    pub alarm: bool,
}

/// A holder of a lock.
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
    /// The text that a leader publishes.
    pub value: Option<String>,
    /// The fencing token.
    pub token: String,
    /// How long it holds.
    pub held_ms: u64,
    /// The length of its lease.
    pub lease_ms: u64,
    /// The rest of its lease; null if the store cannot tell.
    pub left_ms: Option<u64>,
    /// The units that it holds: `all`, or a number.
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

/// A waiter for a lock.
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
    /// The units that it asks for: `all`, or a number.
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
    /// Its first waiters, in the order of the queue.
    pub queue: Vec<Waiter>,
    /// Its history.
    pub timeline: Timeline,
    /// Its promises to its users on this store, as sentences.
    pub meaning: Vec<String>,
    /// Alarms about it.
    pub alarms: Vec<Alarm>,
    /// How much history is kept, as sentences.
    pub kept: String,
}

/// The count of a latch.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct LatchCount {
    /// The count that is left.
    pub remaining: u64,
    /// The count that it was created with.
    pub initial: u64,
}

/// Hot locks.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct HotPage {
    /// How many minutes it looks back.
    pub minutes: u64,
    /// The measure that makes a lock hot.
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
    /// The reason why it is hot.
    pub why: String,
    /// The advice.
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
    /// The alarms that last, by kind, the oldest first.
    pub active: Vec<Alarm>,
    /// How many more there are: at most 1,000 of a kind are told.
    pub left_off: usize,
    /// The alarms that are over, the last one first.
    pub ended: Vec<Alarm>,
    /// The limits, in the order in which they are tried.
    pub limits: Vec<LimitRow>,
    /// Whether the token is for some names only: then it sees the limits of these, and nothing of the file and the webhook.
    pub restricted: bool,
    /// The file that they come from; null without one.
    pub file: Option<String>,
    /// The error of a file that cannot be used; null if it can.
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
    /// Its abilities and the troubles that it survives, in words.
    pub words: Vec<StoreWord>,
    /// Its servers, if it has any.
    pub servers: Vec<ServerRow>,
    /// The doctor's findings.
    pub findings: Vec<FindingRow>,
    /// The moment of the doctor's last look; null if it has not looked yet.
    pub checked_ms: Option<u64>,
    /// Whether the doctor has checks for such a store.
    pub is_checked: bool,
    /// The error of the doctor's last look; null if there was none.
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
    /// Its role and version, in a few words.
    pub words: String,
    /// How many findings the doctor has there.
    pub warnings: usize,
}

/// A finding of the doctor.
#[derive(Clone, Debug, Serialize)]
pub struct FindingRow {
    /// The server or member; null if there is one only.
    pub server: Option<String>,
    /// The risk and the remedy.
    pub message: String,
}
