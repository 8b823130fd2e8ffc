//! Finds the store's URL and connects to it. A URL may hold a password, so no message shows one.

use std::{fs, time::Duration};

use lockkeeper::Keeper;

use crate::{args::StoreArgs, exit::Failure, text};

/// The variable that names the store.
pub(crate) const VARIABLE: &str = "LOCKKEEPER_STORE";

/// The error for a store that nobody else would see.
const NOT_SHARED: &str = "a memory: store is within one process, so nobody else would see the lock; name a store that \
                          others share, such as sqlite:PATH";

/// How long the last requests may take before the program ends without their answers.
const LAST_REQUESTS: Duration = Duration::from_secs(3);

/// A connected keeper, its URL with any password, and whether to print each step.
pub(crate) struct Connected {
    pub(crate) keeper: Keeper,
    pub(crate) url: String,
    pub(crate) verbose: bool,
}

/// Connects to the store that the options name, else the environment, else the default.
pub(crate) async fn connect(args: &StoreArgs) -> Result<Connected, Failure> {
    let url = url(args)?;
    if url.starts_with("memory:") {
        return Err(Failure::usage(NOT_SHARED));
    }
    let keeper = lockkeeper::builder(&url)?.program("lockkeeper").connect().await?;
    Ok(Connected { keeper, url, verbose: args.verbose })
}

/// Releases everything and leaves every queue. If the store is out of reach, leases end by themselves.
pub(crate) async fn close(keeper: &Keeper) {
    drop(tokio::time::timeout(LAST_REQUESTS, keeper.close()).await);
}

/// Returns the URL of the store that the options name, else the environment, else the default, and says with `-v` which
/// one it is. The URL may hold a password.
pub(crate) fn url(args: &StoreArgs) -> Result<String, Failure> {
    let url = named(args)?;
    if let Some(feature) = lockkeeper::url::missing_feature(&url) {
        // The command has no store without TLS.
        let feature = feature.trim_end_matches("-tls");
        let message = format!(
            "this lockkeeper was built without the feature `{feature}`, which this store needs; build it with that feature, \
             or with full, which has every store: cargo install --locked --path crates/cli --features full"
        );
        return Err(Failure::usage(message));
    }
    // Said before anything is asked of it, so that an error follows the name of its store. In a wrong URL, a password may
    // stand anywhere.
    if args.verbose && lockkeeper::url::connector(&url).is_ok() {
        text::say(&format!("the store is {}", text::plain(&shown(&url))));
    }
    Ok(url)
}

/// Returns a good URL without its passwords, which stand in logins and in options. That of a quorum is a list of URLs.
fn shown(url: &str) -> String {
    if let Some(members) = url.strip_prefix("quorum:") {
        let members: Vec<String> = members.split(',').map(shown).collect();
        return format!("quorum:{}", members.join(","));
    }
    let url = without_passwords(url, [url.to_owned()]);
    let Some((front, query)) = url.split_once('?') else { return url };
    let is_secret = |option: &&str| option.split('=').next().is_some_and(|key| key.ends_with("password"));
    let options: Vec<&str> = query.split('&').filter(|option| !is_secret(option)).collect();
    if options.is_empty() { front.to_owned() } else { format!("{front}?{}", options.join("&")) }
}

fn named(args: &StoreArgs) -> Result<String, Failure> {
    if let Some(url) = &args.store {
        if has_password(url) {
            text::say(
                "others can see the password in the list of processes; use --store-file or LOCKKEEPER_STORE",
            );
        }
        return Ok(url.clone());
    }
    if let Some(file) = &args.store_file {
        let content = fs::read_to_string(file).map_err(|error| {
            Failure::usage(format!("cannot read the store file {}: {error}; check its path", file.display()))
        })?;
        return match content.lines().next().map(str::trim) {
            Some(url) if !url.is_empty() => Ok(url.to_owned()),
            _ => Err(Failure::usage(format!(
                "the store file {} is empty; write the store's URL on its first line",
                file.display()
            ))),
        };
    }
    match std::env::var(VARIABLE) {
        Ok(url) if url.trim().is_empty() => Err(Failure::usage(format!(
            "{VARIABLE} is set but empty; set it to the store's URL, or unset it to use the default store"
        ))),
        Ok(url) => Ok(url),
        Err(std::env::VarError::NotUnicode(_)) => {
            Err(Failure::usage(format!("{VARIABLE} is not UTF-8; set it to the store's URL")))
        }
        Err(std::env::VarError::NotPresent) => Ok(lockkeeper::url::default_store()?),
    }
}

fn has_password(url: &str) -> bool {
    password_range(url).is_some()
}

/// Returns the range of user and password in a URL, if it has a password.
fn password_range(url: &str) -> Option<std::ops::Range<usize>> {
    let start = url.find("://")? + 3;
    let end = start + url[start..].rfind('@')?;
    url[start..end].contains(':').then_some(start..end)
}

/// Returns `text` without the passwords of the URLs among `words`, which are the parts of a command line as given.
pub(crate) fn without_passwords(text: &str, words: impl IntoIterator<Item = String>) -> String {
    words.into_iter().fold(text.to_owned(), |text, word| match password_range(&word) {
        Some(range) => text.replace(&word[range], "***"),
        None => text,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_found_and_hidden() {
        assert!(has_password("redis://user:secret@host/"));
        assert!(!has_password("redis://host:6379/") && !has_password("sqlite:/a:b@c"));
        let url = "--store=redis://u:se@cret@host".to_owned();
        let shown = without_passwords("unexpected '--store=redis://u:se@cret@host'", [url]);
        assert_eq!(shown, "unexpected '--store=redis://***@host'");
    }

    #[test]
    fn a_store_is_named_without_its_passwords() {
        for (url, name) in [
            ("sqlite:/var/lib/locks.db?lease=10s", "sqlite:/var/lib/locks.db?lease=10s"),
            ("sqlite:/a:b@c", "sqlite:/a:b@c"),
            ("postgres://ada@host/shop?schema=locks", "postgres://ada@host/shop?schema=locks"),
            ("postgres://ada:canary@host/shop?schema=locks", "postgres://***@host/shop?schema=locks"),
            ("redis://:canary@host:7/2", "redis://***@host:7/2"),
            (
                "redis+sentinel://a,b/m?sentinel_user=u&sentinel_password=canary",
                "redis+sentinel://a,b/m?sentinel_user=u",
            ),
            ("redis+sentinel://a,b/m?sentinel_password=canary", "redis+sentinel://a,b/m"),
            (
                "quorum:lease=9s,redis://u:canary@a,redis://:canary@b?db=1,sqlite:c.db",
                "quorum:lease=9s,redis://***@a,redis://***@b?db=1,sqlite:c.db",
            ),
        ] {
            assert_eq!(shown(url), name);
        }
    }
}
