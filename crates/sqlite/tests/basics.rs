//! The store as a user sees it: two keepers on one file.
#![cfg(target_os = "linux")]

use std::{fs, path::Path, time::Duration};

use lockkeeper_core::{Keeper, StoreError};
use tempfile::TempDir;

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

async fn connect(file: &Path) -> Result<Keeper, StoreError> {
    let connector = lockkeeper_sqlite::connector(&format!("sqlite:{}", file.display()))?;
    Keeper::builder(connector).connect().await
}

#[tokio::test]
async fn two_keepers_share_a_mutex_and_leave_nothing_behind() {
    let folder = folder();
    let file = folder.path().join("locks.db");
    let (ours, theirs) = (connect(&file).await.expect("one"), connect(&file).await.expect("two"));
    let guard = ours.mutex("stock").lock().await.expect("free");
    assert!(theirs.mutex("stock").try_lock().await.expect("asked").is_none());
    let waiting = tokio::spawn({
        let stock = theirs.mutex("stock");
        async move { stock.lock().await }
    });
    while ours.inspect("stock").await.expect("asked").is_none_or(|view| view.waiters.is_empty()) {
        tokio::task::yield_now().await;
    }
    let first = guard.token();
    let started = std::time::Instant::now();
    guard.release().await.expect("held");
    let guard = waiting.await.expect("no panic").expect("served");
    assert!(started.elapsed() < Duration::from_millis(900), "a wake is faster than a poll");
    assert!(guard.token() > first);
    guard.release().await.expect("held");
    ours.close().await;
    theirs.close().await;
    assert_eq!(fs::read_dir(folder.path().join("locks.db-keepers")).expect("listed").count(), 0);
    assert!(!folder.path().join("locks.db-wal").exists(), "the last keeper that closes writes the log back");
}
