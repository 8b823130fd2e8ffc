//! cargo run -p lockkeeper-examples --example fence_tokio_postgres postgres://USER@HOST/DATABASE
//!
//! Locks and data in one PostgreSQL database, with tokio-postgres. Two workers sell what is in stock. One of them is paused
//! past its lease, and then goes on as if it still had the lock. The fence is checked in the transaction that writes, so its
//! write is rolled back: nothing is sold twice.

use std::{error::Error, time::Duration};

use lockkeeper::Token;
use tokio_postgres::{Client, NoTls};

const NAME: &str = "example/stock/43";

/// Admits a token unless a later one was there. It comes first in the transaction: from then on, others wait for its end. If
/// it returns no row, the token is stale.
pub(crate) const FENCE: &str = "\
INSERT INTO lockkeeper.fence AS f (name, highest) VALUES (convert_to($1, 'UTF8'), $2)
ON CONFLICT (name) DO UPDATE SET highest = excluded.highest WHERE f.highest <= excluded.highest
RETURNING highest";

const TABLES: &str = "
CREATE TABLE IF NOT EXISTS example_goods (id integer PRIMARY KEY, quantity bigint NOT NULL);
CREATE TABLE IF NOT EXISTS example_order (goods integer NOT NULL, worker text NOT NULL);
DELETE FROM example_order;
INSERT INTO example_goods VALUES (43, 3) ON CONFLICT (id) DO UPDATE SET quantity = 3";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    run(&std::env::args().nth(1).ok_or("name the database: postgres://USER@HOST/DATABASE")?).await
}

/// Sells everything, with one worker that is late.
pub(crate) async fn run(url: &str) -> Result<(), Box<dyn Error>> {
    // Two workers, each with a connection of its own.
    let (slow, quick) = (lockkeeper::connect(url).await?, lockkeeper::connect(url).await?);
    let (mut slow_db, mut quick_db) = (connect(url).await?, connect(url).await?);
    quick_db.batch_execute(TABLES).await?;

    // A lease that nobody renews, as if the whole process was stopped.
    let paused = slow.mutex(NAME).expires_after(Duration::from_secs(1)).lock().await?;
    let seen = quantity(&slow_db).await?;
    println!("slow: sees {seen} in stock, and is paused past its lease");

    let guard = quick.mutex(NAME).lock().await?;
    let mut sold = 0;
    while let left @ 1.. = quantity(&quick_db).await? {
        assert!(sell(&mut quick_db, guard.token(), left, "quick").await?, "it has the lock");
        sold += 1;
    }
    guard.release().await?;
    println!("quick: has the lock, and sold {sold}");

    let late = sell(&mut slow_db, paused.token(), seen, "slow").await?;
    println!("slow: goes on, and its sale was {}", if late { "made" } else { "rolled back" });
    let sales: i64 = quick_db.query_one("SELECT count(*) FROM example_order", &[]).await?.get(0);
    let left = quantity(&quick_db).await?;
    println!("{sales} sales, {left} left");
    assert_eq!((late, sold, sales, left), (false, 3, 3, 0), "sold what was not there");
    slow.close().await;
    quick.close().await;
    Ok(())
}

/// The options of the URL are Lockkeeper's.
async fn connect(url: &str) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url.split('?').next().unwrap_or(url), NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

async fn quantity(db: &Client) -> Result<i64, tokio_postgres::Error> {
    db.query_one("SELECT quantity FROM example_goods WHERE id = 43", &[]).await?.try_get(0)
}

/// Sells one of the `seen`, in one transaction with the fence. Returns whether it did.
async fn sell(db: &mut Client, token: Token, seen: i64, worker: &str) -> Result<bool, tokio_postgres::Error> {
    let transaction = db.transaction().await?;
    if transaction.query_opt(FENCE, &[&NAME, &i64::from(token)]).await?.is_none() {
        transaction.rollback().await?;
        return Ok(false);
    }
    transaction.execute("UPDATE example_goods SET quantity = $1 WHERE id = 43", &[&(seen - 1)]).await?;
    transaction.execute("INSERT INTO example_order VALUES (43, $1)", &[&worker]).await?;
    transaction.commit().await?;
    Ok(true)
}
