//! The tables of SQL stores, for administrators who make them in place of the programs that use them.

use lockkeeper_core::{StoreError, StoreErrorKind, support::lease_option};

/// Returns the SQL that makes the tables of the store at `url`, with their version, and gives the user of the URL the
/// rights to use them. It is for users who may not make tables. It asks no server. On PostgreSQL, MariaDB and MySQL it
/// may be run again.
///
/// ```
/// let error = lockkeeper::schema::sql("memory:").unwrap_err();
/// assert!(error.to_string().contains("no tables"));
/// ```
///
/// # Errors
/// [`StoreErrorKind::Config`] if the URL is wrong, or its store has no tables.
pub fn sql(url: &str) -> Result<String, StoreError> {
    // The errors for wrong URLs and for stores that were left out are those of connect.
    crate::url::connector(url)?;
    let (url, _) = lease_option::take(url)?;
    match url.split(':').next().unwrap_or_default() {
        #[cfg(feature = "mysql")]
        "mysql" | "mariadb" => lockkeeper_mysql::schema(&url),
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => lockkeeper_postgres::schema(&url),
        #[cfg(all(feature = "sqlite", target_os = "linux"))]
        "sqlite" => lockkeeper_sqlite::schema(&url),
        scheme => {
            let message = format!(
                "{scheme}: stores have no tables, so nobody has to make any; postgres:, mysql: and sqlite: stores have"
            );
            Err(StoreError::new(StoreErrorKind::Config, message))
        }
    }
}
