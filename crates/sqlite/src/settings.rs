//! Parses the URL. Pure: it touches no file.

use std::{path::PathBuf, sync::Arc};

use lockkeeper_core::{StoreError, StoreErrorKind};

/// The settings in a URL.
#[derive(Clone, Debug)]
#[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "only Linux connects"))]
pub(crate) struct Settings {
    /// The URL itself.
    pub(crate) url: Arc<str>,
    /// The database file. A relative path starts at the current folder.
    pub(crate) path: PathBuf,
}

impl Settings {
    /// Parses `sqlite:PATH`.
    pub(crate) fn parse(url: &str) -> Result<Self, StoreError> {
        let config = |message: &str| Err(StoreError::new(StoreErrorKind::Config, message));
        let path = url.strip_prefix("sqlite:").unwrap_or(url);
        // Many programs write `sqlite:///var/lib/locks.db`.
        let path = path.strip_prefix("//").filter(|rest| rest.starts_with('/')).unwrap_or(path);
        if path.contains('?') {
            return config("sqlite: has only the option lease; remove the others");
        }
        if path.is_empty() || path.ends_with('/') {
            return config("the URL names no file; write sqlite:PATH, such as sqlite:/var/lib/app/locks.db");
        }
        if path.starts_with(":memory:") {
            return config("sqlite: needs a file; for locks within this process use memory:");
        }
        if path.contains('\0') {
            return config("the path contains a zero byte; remove it");
        }
        Ok(Self { url: url.into(), path: path.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_that_name_no_file_are_refused() {
        for url in ["sqlite:", "sqlite:/var/lib/", "sqlite::memory:", "sqlite:a?b=c", "sqlite:a\0b"] {
            let error = Settings::parse(url).expect_err(url);
            assert_eq!(error.kind(), StoreErrorKind::Config, "{url}");
        }
        for (url, path) in [
            ("sqlite:locks.db", "locks.db"),
            ("sqlite:/var/lib/locks.db", "/var/lib/locks.db"),
            ("sqlite:///var/lib/locks.db", "/var/lib/locks.db"),
        ] {
            assert_eq!(Settings::parse(url).expect(url).path, PathBuf::from(path));
        }
    }
}
