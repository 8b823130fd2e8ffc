//! The settings in a quorum's URL.

use std::time::Duration;

use lockkeeper_core::{
    StoreError, StoreErrorKind,
    support::{duration, lease_option},
};

use crate::Majority;

/// The longest lease if the URL does not say it.
const MAX_LEASE: Duration = Duration::from_secs(60);

/// The settings that a URL may have before its members.
pub(crate) const OPTIONS: &[&str] = &["lease", "max_lease"];

/// The settings in a URL: `quorum:max_lease=60s,URL,URL,URL`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Settings {
    /// No lock lasts longer without a renewal. A member that lost its data does not vote for this long.
    pub(crate) max_lease: Duration,
    /// The lease for locks whose handle and keeper name none.
    pub(crate) lease: Option<Duration>,
    /// The URLs of the members, in order.
    pub(crate) members: Vec<String>,
    pub(crate) majority: Majority,
}

pub(crate) fn config(message: impl Into<String>) -> StoreError {
    StoreError::new(StoreErrorKind::Config, message)
}

impl Settings {
    /// Takes a URL apart. Messages never repeat a member, which may have a password in it.
    pub(crate) fn parse(url: &str) -> Result<Self, StoreError> {
        let rest = url.strip_prefix("quorum:").ok_or_else(|| config("a quorum's URL begins with quorum:"))?;
        let (mut max_lease, mut lease, mut members) = (None, None, Vec::new());
        for item in rest.split(',').map(str::trim) {
            let option = item.split_once('=').filter(|(key, _)| OPTIONS.contains(key));
            match option {
                Some((_, _)) if !members.is_empty() => {
                    return Err(config("the settings of a quorum come before its members; move them there"));
                }
                Some(("max_lease", value)) => max_lease = Some(time("max_lease", value)?),
                Some((_, value)) => lease = Some(time("lease", value)?),
                None if item.is_empty() => {
                    return Err(config("a member of the quorum is empty; remove the comma"));
                }
                None if members.is_empty() && is_setting(item) => {
                    let known = OPTIONS.join(", ");
                    return Err(config(format!("a quorum has no such setting; it has {known}")));
                }
                None => members.push(member(item)?),
            }
        }
        let majority = Majority::of(members.len()).map_err(|error| config(error.to_string()))?;
        let max_lease = max_lease.unwrap_or(MAX_LEASE);
        if lease.is_some_and(|lease| lease > max_lease) {
            return Err(config("the lease of the quorum is longer than its max_lease; raise max_lease"));
        }
        Ok(Self { max_lease, lease, members, majority })
    }
}

impl Settings {
    /// Puts another member in the place of one, which is named by its URL, with or without its password, or by its
    /// number. Returns the place.
    pub(crate) fn replace(&mut self, old: &str, new: &str) -> Result<usize, StoreError> {
        let new = member(new)?;
        let is_old =
            |(nth, url): (usize, &String)| url == old || plain(url) == old || (nth + 1).to_string() == old;
        let place = self.members.iter().enumerate().position(is_old);
        let place = place.ok_or_else(|| {
            config("the server to replace is not in the quorum's URL; name it as there, or by its number")
        })?;
        if self.members.contains(&new) {
            return Err(config("the new server is a member already; name one that is not"));
        }
        self.members[place] = new;
        Ok(place)
    }
}

/// A URL without user, password and options, which may have passwords in them.
pub(crate) fn plain(url: &str) -> String {
    let url = url.split('?').next().unwrap_or_default();
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
    let address = authority.rsplit_once('@').map_or(authority, |(_, address)| address);
    // A password with a slash in it: the text after it may be a part of it.
    if path.contains('@') { format!("{scheme}://…") } else { format!("{scheme}://{address}{path}") }
}

/// Whether an item is a setting that is not known, and no URL.
fn is_setting(item: &str) -> bool {
    item.split_once('=').is_some_and(|(key, _)| !key.contains([':', '/']))
}

fn time(key: &str, value: &str) -> Result<Duration, StoreError> {
    let time = duration::parse(value).ok().filter(|time| !time.is_zero());
    time.ok_or_else(|| config(format!("the setting {key} of the quorum needs a time such as 60s or 2m")))
}

/// The URL of a member: `%2C` stands for a comma.
fn member(item: &str) -> Result<String, StoreError> {
    let scheme = item.split(':').next().unwrap_or_default();
    let why = match scheme {
        "quorum" => "a quorum cannot be a member of a quorum; name its members",
        "zookeeper" => {
            "ZooKeeper cannot be a member of a quorum, because it is one by itself; use its URL alone"
        }
        scheme if scheme.contains("+sentinel") || scheme.contains("+cluster") => {
            "Redis behind sentinels or as a cluster cannot be a member of a quorum, because two of its servers may grant at \
             the same time; name single servers"
        }
        _ if item.contains("://") || item.contains(':') => "",
        _ => "a member of the quorum is no URL; it is one such as redis://host",
    };
    if !why.is_empty() {
        return Err(config(why));
    }
    let url = item.replace("%2C", ",").replace("%2c", ",");
    if lease_option::take(&url)?.1.is_some() {
        return Err(config("members of a quorum have no lease of their own; write quorum:lease=…,…"));
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_come_first_and_all_else_is_a_member() {
        let settings = Settings::parse("quorum:max_lease=2m,lease=10s,redis://a,sqlite:/x%2Cy.db,memory:c")
            .expect("good");
        assert_eq!(
            (settings.max_lease, settings.lease),
            (Duration::from_secs(120), Some(Duration::from_secs(10)))
        );
        assert_eq!(settings.members, ["redis://a", "sqlite:/x,y.db", "memory:c"]);
        let plain = Settings::parse("quorum:memory:a,memory:b,memory:c").expect("good");
        assert_eq!((plain.max_lease, plain.lease), (Duration::from_secs(60), None));
    }

    #[test]
    fn a_member_is_replaced_by_url_or_number() {
        let url = "quorum:redis://ada:canary@a:7,redis://b,sqlite:/c.db";
        for old in ["redis://ada:canary@a:7", "redis://a:7", "1"] {
            let mut settings = Settings::parse(url).expect("good");
            assert_eq!(settings.replace(old, "redis://d").expect("replaced"), 0);
            assert_eq!(settings.members, ["redis://d", "redis://b", "sqlite:/c.db"]);
        }
        for (old, new, word) in [
            ("redis://x", "redis://d", "not in the quorum's URL"),
            ("redis://b", "sqlite:/c.db", "already"),
            ("redis://b", "zookeeper://d", "by itself"),
        ] {
            let error = Settings::parse(url).expect("good").replace(old, new).expect_err(old).to_string();
            assert!(error.contains(word) && !error.contains("canary"), "{error}");
        }
        assert_eq!(plain("postgres://u:a/b@h/db?password=x"), "postgres://…");
        assert_eq!(plain("postgres://u:p@h/db?password=x"), "postgres://h/db");
    }

    #[test]
    fn what_cannot_work_is_refused_with_the_reason() {
        for (url, word) in [
            ("quorum:redis://a", "one server is that server"),
            ("quorum:redis://a,redis://b", "use 3, 5 or 7"),
            ("quorum:redis://a,redis://b,redis://c,redis://d", "use 3, 5 or 7"),
            ("quorum:", "comma"),
            ("quorum:redis://a,,redis://b", "comma"),
            ("quorum:redis://a,max_lease=3s,redis://b,redis://c", "before its members"),
            ("quorum:colour=red,redis://a,redis://b,redis://c", "no such setting"),
            ("quorum:max_lease=soon,redis://a,redis://b,redis://c", "max_lease"),
            ("quorum:lease=2m,redis://a,redis://b,redis://c", "longer than its max_lease"),
            ("quorum:redis://a?lease=3s,redis://b,redis://c", "quorum:lease"),
            ("quorum:redis+sentinel://u:canary@a/m,redis://b,redis://c", "sentinels"),
            ("quorum:redis+cluster://a,redis://b,redis://c", "single servers"),
            ("quorum:zookeeper://a,redis://b,redis://c", "by itself"),
            ("quorum:quorum:x,redis://b,redis://c", "name its members"),
            ("quorum:canary,redis://b,redis://c", "no URL"),
        ] {
            let error = Settings::parse(url).expect_err(url).to_string();
            assert!(error.contains(word) && !error.contains("canary"), "{url}: {error}");
        }
    }
}
