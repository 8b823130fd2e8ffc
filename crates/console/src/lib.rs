//! Locks for the eyes of operators: the last hour of each lock, hot locks, alarms, and the pages that show them.
//!
//! The crate knows no HTTP server. A server takes samples of its store (one listing each) and gives them to a
//! [`Console`]. It asks the console for a [`View`](view::View) whenever a page wants one, and sends [`asset`]s to
//! browsers. All times come with the samples, so tests need no clock.

mod advice;
mod alarms;
mod assets;
mod clock;
mod console;
mod curve;
pub mod demo;
mod diagnosis;
mod history;
mod hot;
mod pattern;
mod post;
mod rules;
mod sample;
mod scope;
mod store_words;
mod table;
mod timeline;
pub mod view;
mod webhook;
mod window;

pub use alarms::{Alarm, AlarmKind};
pub use assets::{Asset, CONTENT_SECURITY_POLICY, asset};
pub use clock::{Millis, SteadyClock};
pub use console::{Console, StoreFacts};
pub use diagnosis::{Diagnosis, Finding};
pub use history::Eviction;
pub use post::{Http, Post, PostError};
pub use rules::{Rules, RulesError};
pub use sample::Sample;
pub use scope::Scope;
pub use view::Query;
pub use webhook::{Webhook, WebhookStatus};
