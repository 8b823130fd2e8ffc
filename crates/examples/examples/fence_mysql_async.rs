//! cargo run -p lockkeeper-examples --example fence_mysql_async mysql://USER@HOST/DATABASE
//!
//! Locks and data in one MariaDB or MySQL database, with mysql_async. Two workers sell what is in stock. One of them is paused
//! past its lease, and then goes on as if it still had the lock. The fence is checked in the transaction that writes, so its
//! write is rolled back: nothing is sold twice.

use std::{error::Error, time::Duration};

use lockkeeper::Token;
use mysql_async::{Conn, Opts, TxOpts, prelude::Queryable};

const NAME: &str = "example/stock/42";

/// Shows a token to the fence. It comes first in the transaction: from then on, others wait for its end. How many rows it
/// changed says nothing, because servers and drivers count differently.
pub(crate) const RAISE: &str = "\
INSERT INTO lockkeeper_fence (name, highest, used)
VALUES (?, ?, TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6)))
ON DUPLICATE KEY UPDATE highest = GREATEST(highest, VALUES(highest)), used = VALUES(used)";

/// Decides: if it returns more than the token, the token is stale. It locks, because a plain read would see the fence as it
/// was when the transaction began.
pub(crate) const DECIDE: &str = "SELECT highest FROM lockkeeper_fence WHERE name = ? FOR UPDATE";

const TABLES: [&str; 4] = [
    "CREATE TABLE IF NOT EXISTS example_stock (id INT PRIMARY KEY, quantity BIGINT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS example_sale (stock INT NOT NULL, worker VARCHAR(20) NOT NULL)",
    "DELETE FROM example_sale",
    "INSERT INTO example_stock VALUES (42, 3) ON DUPLICATE KEY UPDATE quantity = 3",
];

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    run(&std::env::args().nth(1).ok_or("name the database: mysql://USER@HOST/DATABASE")?).await
}

/// Sells everything, with one worker that is late.
pub(crate) async fn run(url: &str) -> Result<(), Box<dyn Error>> {
    // Two workers, each with a connection of its own. The options of the URL are Lockkeeper's.
    let (slow, quick) = (lockkeeper::connect(url).await?, lockkeeper::connect(url).await?);
    let database = Opts::from_url(url.split('?').next().unwrap_or(url))?;
    let (mut slow_db, mut quick_db) = (Conn::new(database.clone()).await?, Conn::new(database).await?);
    for statement in TABLES {
        quick_db.query_drop(statement).await?;
    }

    // A lease that nobody renews, as if the whole process was stopped.
    let paused = slow.mutex(NAME).expires_after(Duration::from_secs(1)).lock().await?;
    let seen = quantity(&mut slow_db).await?;
    println!("slow: sees {seen} in stock, and is paused past its lease");

    let guard = quick.mutex(NAME).lock().await?;
    let mut sold = 0;
    while let left @ 1.. = quantity(&mut quick_db).await? {
        assert!(sell(&mut quick_db, guard.token(), left, "quick").await?, "it has the lock");
        sold += 1;
    }
    guard.release().await?;
    println!("quick: has the lock, and sold {sold}");

    let late = sell(&mut slow_db, paused.token(), seen, "slow").await?;
    println!("slow: goes on, and its sale was {}", if late { "made" } else { "rolled back" });
    let sales: i64 = quick_db.query_first("SELECT COUNT(*) FROM example_sale").await?.unwrap_or(0);
    let left = quantity(&mut quick_db).await?;
    println!("{sales} sales, {left} left");
    assert_eq!((late, sold, sales, left), (false, 3, 3, 0), "sold what was not there");
    slow_db.disconnect().await?;
    quick_db.disconnect().await?;
    slow.close().await;
    quick.close().await;
    Ok(())
}

async fn quantity(db: &mut Conn) -> Result<i64, mysql_async::Error> {
    let quantity = db.query_first("SELECT quantity FROM example_stock WHERE id = 42").await?;
    Ok(quantity.unwrap_or(0))
}

/// Sells one of the `seen`, in one transaction with the fence. Returns whether it did.
async fn sell(db: &mut Conn, token: Token, seen: i64, worker: &str) -> Result<bool, mysql_async::Error> {
    let mut transaction = db.start_transaction(TxOpts::default()).await?;
    transaction.exec_drop(RAISE, (NAME, i64::from(token))).await?;
    let highest: Option<i64> = transaction.exec_first(DECIDE, (NAME,)).await?;
    if highest != Some(i64::from(token)) {
        transaction.rollback().await?;
        return Ok(false);
    }
    transaction.exec_drop("UPDATE example_stock SET quantity = ? WHERE id = 42", (seen - 1,)).await?;
    transaction.exec_drop("INSERT INTO example_sale VALUES (42, ?)", (worker,)).await?;
    transaction.commit().await?;
    Ok(true)
}
