//! cargo run -p lockkeeper-examples --example fence_sqlx postgres://USER@HOST/DATABASE
//!
//! Locks and data in one PostgreSQL database, with sqlx. Two workers sell what is in stock. One of them is paused past its
//! lease, and then goes on as if it still had the lock. The fence is checked in the transaction that writes, so its write is
//! rolled back: nothing is sold twice.

use std::{error::Error, time::Duration};

use lockkeeper::Token;
use sqlx::{Connection, PgConnection};

const NAME: &str = "example/stock/42";

/// Admits a token unless a later one was there. It comes first in the transaction: from then on, others wait for its end. If
/// it returns no row, the token is stale.
pub(crate) const FENCE: &str = "\
INSERT INTO lockkeeper.fence AS f (name, highest) VALUES (convert_to($1, 'UTF8'), $2)
ON CONFLICT (name) DO UPDATE SET highest = excluded.highest WHERE f.highest <= excluded.highest
RETURNING highest";

const TABLES: [&str; 4] = [
    "CREATE TABLE IF NOT EXISTS example_stock (id integer PRIMARY KEY, quantity bigint NOT NULL)",
    "CREATE TABLE IF NOT EXISTS example_sale (stock integer NOT NULL, worker text NOT NULL)",
    "DELETE FROM example_sale",
    "INSERT INTO example_stock VALUES (42, 3) ON CONFLICT (id) DO UPDATE SET quantity = 3",
];

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    run(&std::env::args().nth(1).ok_or("name the database: postgres://USER@HOST/DATABASE")?).await
}

/// Sells everything, with one worker that is late.
pub(crate) async fn run(url: &str) -> Result<(), Box<dyn Error>> {
    // Two workers, each with a connection of its own. The options of the URL are Lockkeeper's.
    let (slow, quick) = (lockkeeper::connect(url).await?, lockkeeper::connect(url).await?);
    let database = url.split('?').next().unwrap_or(url);
    let (mut slow_db, mut quick_db) =
        (PgConnection::connect(database).await?, PgConnection::connect(database).await?);
    for statement in TABLES {
        sqlx::query(statement).execute(&mut quick_db).await?;
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
    let sales: i64 = sqlx::query_scalar("SELECT count(*) FROM example_sale").fetch_one(&mut quick_db).await?;
    let left = quantity(&mut quick_db).await?;
    println!("{sales} sales, {left} left");
    assert_eq!((late, sold, sales, left), (false, 3, 3, 0), "sold what was not there");
    slow.close().await;
    quick.close().await;
    Ok(())
}

async fn quantity(db: &mut PgConnection) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar("SELECT quantity FROM example_stock WHERE id = 42").fetch_one(db).await
}

/// Sells one of the `seen`, in one transaction with the fence. Returns whether it did.
async fn sell(db: &mut PgConnection, token: Token, seen: i64, worker: &str) -> Result<bool, sqlx::Error> {
    let mut transaction = db.begin().await?;
    let admitted = sqlx::query(FENCE).bind(NAME).bind(i64::from(token));
    if admitted.fetch_optional(&mut *transaction).await?.is_none() {
        transaction.rollback().await?;
        return Ok(false);
    }
    let update = sqlx::query("UPDATE example_stock SET quantity = $1 WHERE id = 42").bind(seen - 1);
    update.execute(&mut *transaction).await?;
    let sale = sqlx::query("INSERT INTO example_sale VALUES (42, $1)").bind(worker);
    sale.execute(&mut *transaction).await?;
    transaction.commit().await?;
    Ok(true)
}
