//! What puts the locks of a store at risk, and what to do: the checks of every store, in one shape.

use lockkeeper_core::{StoreError, support::lease_option};

/// Something that puts locks at risk, and what to do.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Finding {
    /// The server or file, if the store has several or knows its name.
    pub server: Option<String>,
    /// The kind of risk, as one word.
    pub risk: String,
    /// What the risk is and what to do.
    pub message: String,
}

impl Finding {
    /// A finding about the store as a whole.
    pub fn of_store(risk: &str, message: &str) -> Self {
        Self { server: None, risk: risk.to_owned(), message: message.to_owned() }
    }

    #[cfg(any(feature = "sqlite", feature = "postgres", feature = "redis", feature = "zookeeper"))]
    fn new(server: Option<String>, risk: impl std::fmt::Debug, message: String) -> Self {
        Self { server, risk: format!("{risk:?}"), message }
    }
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.server {
            Some(server) => write!(f, "{server}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

/// Looks for what puts the locks of the store at `url` at risk. It changes nothing, but a store on PostgreSQL makes its
/// tables if they are not there.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkeeper::Error> {
/// assert_eq!(lockkeeper::doctor::check("memory:").await?, []);
/// # Ok(()) }
/// ```
///
/// # When the store is unreachable
/// Fails after a few seconds.
///
/// # Errors
/// [`StoreError`] if the URL is wrong or the store cannot be asked.
pub async fn check(url: &str) -> Result<Vec<Finding>, StoreError> {
    // Wrong URLs and stores that were left out are told as by connect.
    crate::url::connector(url)?;
    let (url, _) = lease_option::take(url)?;
    Ok(match url.split(':').next().unwrap_or_default() {
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => {
            let found = lockkeeper_postgres::check(&url).await?;
            found.into_iter().map(|it| Finding::new(None, it.risk, it.message)).collect()
        }
        #[cfg(feature = "redis")]
        scheme if scheme.starts_with("redis") => {
            let found = lockkeeper_redis::check(&url).await?;
            found.into_iter().map(|it| Finding::new(Some(it.server), it.risk, it.message)).collect()
        }
        #[cfg(all(feature = "sqlite", target_os = "linux"))]
        "sqlite" => {
            let found = lockkeeper_sqlite::check(&url)?;
            let path = |path: std::path::PathBuf| Some(path.display().to_string());
            found.into_iter().map(|it| Finding::new(path(it.path), it.risk, it.message)).collect()
        }
        #[cfg(feature = "zookeeper")]
        "zookeeper" => {
            let found = lockkeeper_zookeeper::check(&url).await?;
            found.into_iter().map(|it| Finding::new(Some(it.server), it.risk, it.message)).collect()
        }
        _ => Vec::new(),
    })
}
