//! The rules of alarms: limits for patterns of names, from a TOML file, with sound limits where the file sets none.

use std::{fmt, time::Duration};

use lockkeeper::{store::Kind, support::duration};
use serde::{Deserialize, Deserializer, de};

use crate::pattern::Pattern;

/// A lock that is held for longer is reported. Elections are not: a leader may lead for ever.
const HELD: Duration = Duration::from_secs(3600);
/// A wait that takes longer is reported. Elections are not: candidates wait for as long as the leader leads.
const WAITED: Duration = Duration::from_secs(300);
/// A lock with more waiters is reported. Elections are not.
const WAITERS: u32 = 100;

/// The rules of a file; without one, none, so the sound limits hold.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Rules {
    rules: Vec<Rule>,
    webhook: Option<WebhookRule>,
}

/// The receiver of alarms.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct WebhookRule {
    pub(crate) url: String,
    pub(crate) authorization: Option<String>,
}

/// Shows neither field, because both may have secrets.
impl fmt::Debug for WebhookRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WebhookRule")
    }
}

/// The error of a file that cannot be used. It names the line and the mistake, but repeats nothing of the file, which
/// may have secrets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RulesError(String);

impl RulesError {
    pub(crate) fn new(why: impl Into<String>) -> Self {
        Self(why.into())
    }
}

impl fmt::Display for RulesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for RulesError {}

/// A limit, or none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Limit<T> {
    Off,
    At(T),
}

impl<T: Copy> Limit<T> {
    pub(crate) fn at(self) -> Option<T> {
        match self {
            Self::Off => None,
            Self::At(limit) => Some(limit),
        }
    }
}

/// One table `[[alarm]]`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Rule {
    pub(crate) names: Vec<Pattern>,
    pub(crate) held: Option<Limit<Duration>>,
    pub(crate) waited: Option<Limit<Duration>>,
    pub(crate) waiters: Option<Limit<u32>>,
    pub(crate) renewal: Option<bool>,
}

/// The limits of one lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Limits {
    pub(crate) held: Limit<Duration>,
    pub(crate) waited: Limit<Duration>,
    pub(crate) waiters: Limit<u32>,
    /// Whether a lease that is not renewed in time is reported.
    pub(crate) renewal: bool,
}

impl Limits {
    /// Returns the limits without a file.
    pub(crate) fn of(kind: Kind) -> Self {
        match kind {
            Kind::Election => {
                Self { held: Limit::Off, waited: Limit::Off, waiters: Limit::Off, renewal: true }
            }
            _ => Self {
                held: Limit::At(HELD),
                waited: Limit::At(WAITED),
                waiters: Limit::At(WAITERS),
                renewal: true,
            },
        }
    }
}

impl Rules {
    /// Reads a file.
    ///
    /// ```
    /// let rules = lockkeeper_console::Rules::parse(
    ///     r#"
    ///     [webhook]
    ///     url = "https://hooks.example/locks"
    ///
    ///     [[alarm]]
    ///     names = ["nightly/*", "backup"]
    ///     held = "6h"
    ///     waiters = "off"
    ///     "#,
    /// );
    /// assert!(rules.is_ok());
    /// ```
    ///
    /// # Errors
    /// Names the line and the mistake.
    pub fn parse(text: &str) -> Result<Self, RulesError> {
        let file: File = toml::from_str(text).map_err(|error| {
            let line = error.span().map(|span| text[..span.start.min(text.len())].matches('\n').count() + 1);
            let place = line.map_or_else(String::new, |line| format!("line {line}: "));
            RulesError(format!("{place}{}", error.message()))
        })?;
        let webhook = file
            .webhook
            .map(|webhook| WebhookRule { url: webhook.url, authorization: webhook.authorization });
        if let Some(webhook) = &webhook {
            crate::post::Target::parse(&webhook.url)
                .map_err(|why| RulesError(format!("the webhook's url: {why}")))?;
        }
        let rules = file.alarm.into_iter().enumerate().map(|(index, rule)| rule.checked(index + 1));
        Ok(Self { rules: rules.collect::<Result<_, _>>()?, webhook })
    }

    pub(crate) fn webhook(&self) -> Option<&WebhookRule> {
        self.webhook.as_ref()
    }

    pub(crate) fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Returns the same limits, with alarms sent to nobody.
    #[must_use]
    pub fn without_webhook(self) -> Self {
        Self { webhook: None, ..self }
    }

    /// Returns the limits of a lock. For each limit, the first rule that matches and sets it decides. Rules for all
    /// names do not limit elections: leaders lead and candidates wait for as long as they like.
    pub(crate) fn limits(&self, name: &str, kind: Kind) -> Limits {
        let mut limits = Limits::of(kind);
        for rule in self.rules.iter().rev() {
            let mut matching = rule.names.iter().filter(|names| names.matches(name)).peekable();
            if matching.peek().is_none() {
                continue;
            }
            limits.renewal = rule.renewal.unwrap_or(limits.renewal);
            if kind != Kind::Election || matching.any(|names| !names.is_everything()) {
                limits.held = rule.held.unwrap_or(limits.held);
                limits.waited = rule.waited.unwrap_or(limits.waited);
                limits.waiters = rule.waiters.unwrap_or(limits.waiters);
            }
        }
        limits
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    webhook: Option<FileWebhook>,
    #[serde(default)]
    alarm: Vec<FileRule>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileWebhook {
    url: String,
    authorization: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileRule {
    names: Option<OneOrMany>,
    #[serde(default, deserialize_with = "length")]
    held: Option<Limit<Duration>>,
    #[serde(default, deserialize_with = "length")]
    waited: Option<Limit<Duration>>,
    #[serde(default, deserialize_with = "number")]
    waiters: Option<Limit<u32>>,
    #[serde(default, deserialize_with = "switch")]
    renewal: Option<bool>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum TextOrNumber {
    Text(String),
    Number(u32),
}

impl FileRule {
    fn checked(self, place: usize) -> Result<Rule, RulesError> {
        let names = match self.names {
            None => vec!["*".to_owned()],
            Some(OneOrMany::One(name)) => vec![name],
            Some(OneOrMany::Many(names)) => names,
        };
        if names.is_empty() || names.iter().any(String::is_empty) {
            let why = "names is empty, so it matches nothing; give patterns such as nightly/*";
            return Err(RulesError(format!("alarm {place}: {why}")));
        }
        let Self { held, waited, waiters, renewal, .. } = self;
        if held.is_none() && waited.is_none() && waiters.is_none() && renewal.is_none() {
            let why = "it sets nothing; give held, waited, waiters or renewal";
            return Err(RulesError(format!("alarm {place}: {why}")));
        }
        Ok(Rule { names: names.into_iter().map(Pattern::new).collect(), held, waited, waiters, renewal })
    }
}

fn length<'de, D: Deserializer<'de>>(reader: D) -> Result<Option<Limit<Duration>>, D::Error> {
    let text = String::deserialize(reader)?;
    if text == "off" {
        return Ok(Some(Limit::Off));
    }
    let length = duration::parse(&text).map_err(|why| de::Error::custom(format!("{why}; or \"off\"")))?;
    if length.is_zero() {
        return Err(de::Error::custom("a limit of zero would report every lock; give more, or \"off\""));
    }
    Ok(Some(Limit::At(length)))
}

fn number<'de, D: Deserializer<'de>>(reader: D) -> Result<Option<Limit<u32>>, D::Error> {
    match TextOrNumber::deserialize(reader) {
        Ok(TextOrNumber::Text(text)) if text == "off" => Ok(Some(Limit::Off)),
        Ok(TextOrNumber::Number(limit)) => Ok(Some(Limit::At(limit))),
        _ => Err(de::Error::custom("give a number, or \"off\"")),
    }
}

fn switch<'de, D: Deserializer<'de>>(reader: D) -> Result<Option<bool>, D::Error> {
    match &*String::deserialize(reader)? {
        "on" => Ok(Some(true)),
        "off" => Ok(Some(false)),
        _ => Err(de::Error::custom("give \"on\" or \"off\"")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(text: &str) -> Rules {
        Rules::parse(text).expect("a good file")
    }

    #[test]
    fn without_a_file_the_limits_are_sound() {
        let rules = Rules::default();
        assert_eq!(rules.limits("a", Kind::Mutex).held, Limit::At(HELD));
        assert_eq!(rules.limits("a", Kind::Semaphore).waiters, Limit::At(100));
        let election = rules.limits("a", Kind::Election);
        assert_eq!((election.held, election.waited, election.waiters), (Limit::Off, Limit::Off, Limit::Off));
        assert!(election.renewal);
    }

    #[test]
    fn the_first_rule_that_says_something_decides() {
        let rules = rules(
            "[[alarm]]\nnames = 'nightly/*'\nheld = '6h'\n\
             [[alarm]]\nnames = ['nightly/*', 'x']\nheld = 'off'\nwaiters = 3\nrenewal = 'off'\n\
             [[alarm]]\nwaited = '30s'\n",
        );
        let limits = rules.limits("nightly/a", Kind::Mutex);
        assert_eq!(limits.held, Limit::At(Duration::from_secs(6 * 3600)));
        assert_eq!((limits.waiters, limits.waited), (Limit::At(3), Limit::At(Duration::from_secs(30))));
        assert!(!limits.renewal);
        assert_eq!(rules.limits("x", Kind::Mutex).held, Limit::Off);
        assert_eq!(rules.limits("y", Kind::Mutex).held, Limit::At(HELD));
        // A rule that names an election speaks of it, too; one for all names does not.
        assert_eq!(rules.limits("x", Kind::Election).waiters, Limit::At(3));
        assert_eq!(rules.limits("y", Kind::Election).waited, Limit::Off);
    }

    #[test]
    fn mistakes_are_told_with_their_line_and_without_secrets() {
        for (text, says) in [
            ("[[alarm]]\nheld = 'soon'", "line 2: write a time"),
            ("[[alarm]]\nheld = '0s'", "line 2: a limit of zero"),
            ("[[alarm]]\nhold = '1s'", "hold"),
            ("[[alarm]]\nwaiters = 'many'", "give a number"),
            ("[[alarm]]\nrenewal = true", "line 2"),
            ("[[alarm]]\nnames = 'a'", "sets nothing"),
            ("[[alarm]]\nnames = []\nheld = '1s'", "names is empty"),
            ("alarm = 3", "line 1"),
            ("[webhook]\nurl = 'ftp://canary@x'", "http"),
            ("[webhook]\nurl = 'https://x/'\nauthorization = 'canary", "line 3"),
            ("[webhook]\nauthorization = 'canary'", "url"),
        ] {
            let error = Rules::parse(text).expect_err(text).to_string();
            assert!(error.contains(says) && !error.contains("canary"), "{text:?}: {error}");
        }
        let hook = rules("[webhook]\nurl = 'https://x/canary'\nauthorization = 'canary'");
        assert!(!format!("{hook:?}").contains("canary"));
    }
}
