//! Which store a URL means. A new store adds one row here.

use lockkeeper_core::{StoreError, StoreErrorKind, memory, store::Connector};

/// The schemes of this build, for messages.
const SCHEMES: &[&str] = &[
    "memory:",
    #[cfg(feature = "sqlite")]
    "sqlite:",
];

/// The connector for `url`.
///
/// ```
/// assert!(lockkeeper::url::connector("memory:").is_ok());
/// let error = lockkeeper::url::connector("ftp://user:secret@host").unwrap_err();
/// assert!(error.to_string().contains("memory:") && !error.to_string().contains("secret"));
/// ```
///
/// # Errors
/// [`StoreErrorKind::Config`] if no store of this build has such URLs; the message never repeats
/// what comes after the scheme, where passwords are.
pub fn connector(url: &str) -> Result<Connector, StoreError> {
    let config = |message: String| StoreError::new(StoreErrorKind::Config, message);
    let Some((scheme, rest)) = url.split_once(':') else {
        return Err(config(format!(
            "the store's URL has no scheme; it starts with one of {}",
            SCHEMES.join(" ")
        )));
    };
    match scheme {
        "memory" if rest.contains('?') => {
            Err(config("memory: has no options; remove everything from the question mark on".into()))
        }
        "memory" => Ok(memory::connector(url)),
        #[cfg(feature = "sqlite")]
        "sqlite" => lockkeeper_sqlite::connector(url),
        _ => {
            // Only a plain word is shown: a URL without "//" may have its password here.
            let plain = scheme.len() <= 20 && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'+');
            let scheme = if plain { scheme } else { "that" };
            Err(config(format!("no store of this build has {scheme}: URLs; it has {}", SCHEMES.join(" "))))
        }
    }
}
