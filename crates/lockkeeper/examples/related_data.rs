//! cargo run -p lockkeeper --example related_data [URL]
//!
//! Two services change an order and its stock, which must always agree. The lock keeps them apart;
//! the fence keeps the data right when one of them was paused, lost its lock and does not know it
//! yet: its write comes with an old token and is rejected.

use std::sync::Mutex;

use lockkeeper::{Error, Fence, Keeper, Token, store::Eviction};

/// Two tables that belong together, and the highest token seen. In a database the token is a
/// column: `UPDATE … WHERE fence <= $token`.
#[derive(Default)]
struct Tables {
    fence: Fence,
    rows: Mutex<Rows>,
}

#[derive(Default, Debug)]
struct Rows {
    ordered: u32,
    in_stock: u32,
}

impl Tables {
    /// One transaction: both rows or none, and only with a token that is not too old.
    fn order(&self, token: Token) -> Result<(), Token> {
        self.fence.admit(token)?;
        let mut rows = self.rows.lock().expect("nobody panicked");
        rows.ordered += 1;
        rows.in_stock -= 1;
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::args().nth(1).map_or_else(lockkeeper::url::default_store, Ok)?;
    let tables = Tables { rows: Mutex::new(Rows { ordered: 0, in_stock: 10 }), ..Tables::default() };
    let name = "example/order-17";

    let shop = lockkeeper::connect(&url).await?;
    let paused = shop.mutex(name).lock().await?;
    println!("shop: holds the lock with token {}, and is paused before it writes", paused.token());

    // Meanwhile somebody takes the lock from it, as the end of its lease would.
    take_away(&shop, name, paused.token()).await?;
    let warehouse = lockkeeper::connect(&url).await?;
    let guard = warehouse.mutex(name).lock().await?;
    tables.order(guard.token()).expect("the newest token");
    println!("warehouse: wrote with token {}", guard.token());
    guard.release().await?;

    match tables.order(paused.token()) {
        Ok(()) => unreachable!("an older token was admitted"),
        Err(highest) => println!("shop: goes on and is rejected, {highest} has been seen"),
    }
    println!("shop: release says {}", paused.release().await.expect_err("it was lost"));
    println!("{:?}", tables.rows.lock().expect("nobody panicked"));
    shop.close().await;
    warehouse.close().await;
    Ok(())
}

async fn take_away(keeper: &Keeper, name: &str, token: Token) -> Result<(), Error> {
    let view = keeper.inspect(name).await?.expect("it is held");
    let holder = view.holders.iter().find(|holder| holder.token.number() == token.number());
    let evicted = keeper.evict(name, holder.expect("it holds").contender, token, Eviction::Immediate).await?;
    assert!(evicted, "it held until now");
    Ok(())
}
