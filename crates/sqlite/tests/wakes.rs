//! Lost wakes cost time, and nothing else.
#![cfg(target_os = "linux")]

use std::{fs, path::Path, time::Duration};

use lockkeeper_core::Keeper;

async fn connect(file: &Path) -> Keeper {
    let connector = lockkeeper_sqlite::connector(&format!("sqlite:{}", file.display())).expect("a good URL");
    Keeper::builder(connector).connect().await.expect("connected")
}

/// The sockets of all keepers are removed while two wait. Both are served, because they poll.
#[tokio::test]
async fn waiters_that_cannot_be_woken_are_served_all_the_same() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("locks.db");
    let holder = connect(&file).await;
    let guard = holder.mutex("stock").lock().await.expect("free");
    let mut waiters = Vec::new();
    for position in 1..=2 {
        let keeper = connect(&file).await;
        waiters.push(tokio::spawn(async move { keeper.mutex("stock").lock().await }));
        while holder
            .inspect("stock")
            .await
            .expect("readable")
            .is_none_or(|view| view.waiters.len() < position)
        {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    let sockets = fs::read_dir(folder.path().join("locks.db-keepers")).expect("a folder");
    let sockets = sockets.map(|entry| entry.expect("readable").path());
    let removed =
        sockets.filter(|path| path.extension().is_some_and(|end| end == "wake")).map(fs::remove_file);
    assert_eq!(removed.filter(Result::is_ok).count(), 3);
    guard.release().await.expect("held");
    for waiter in waiters {
        let served = tokio::time::timeout(Duration::from_secs(20), waiter).await;
        let guard = served.expect("soon enough").expect("no panic").expect("served");
        assert!(guard.is_held());
        guard.release().await.expect("held");
    }
}
