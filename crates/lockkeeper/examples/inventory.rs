//! cargo run -p lockkeeper --example inventory [URL]
//!
//! A sale: 2,000 items, 10,000 buyers at once, and exactly 2,000 sold. The stock is split into
//! 100 segments with 20 items and one lock each, so buyers wait only for those of their own
//! segment. Without the locks, buyers would read the same number and sell an item twice.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Instant,
};

use lockkeeper::Error;

const ITEMS: u32 = 2_000;
const SEGMENTS: u32 = 100;
const BUYERS: u32 = 10_000;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::args().nth(1).map_or_else(lockkeeper::url::default_store, Ok)?;
    let keeper = lockkeeper::connect(&url).await?;
    let stock: Arc<[AtomicU32]> = (0..SEGMENTS).map(|_| AtomicU32::new(ITEMS / SEGMENTS)).collect();
    let locks = keeper.segmented("example/sale", SEGMENTS);

    let start = Instant::now();
    let buyers = (0..BUYERS).map(|buyer| {
        let (locks, stock) = (locks.clone(), stock.clone());
        tokio::spawn(async move {
            let user = format!("user-{buyer}");
            let segment = locks.segment_of(&user);
            let guard = locks.segment(segment).lock().await?;
            let bought = buy(&stock[segment as usize]).await;
            guard.release().await?;
            Ok::<bool, Error>(bought)
        })
    });
    let mut sold = 0;
    for buyer in buyers.collect::<Vec<_>>() {
        sold += u32::from(buyer.await.expect("no buyer panics")?);
    }
    let left: u32 = stock.iter().map(|segment| segment.load(Ordering::Relaxed)).sum();
    println!("{BUYERS} buyers, {sold} of {ITEMS} sold, {left} left, in {:.1?}", start.elapsed());
    assert_eq!((sold, left), (ITEMS, 0), "sold too many or too few");
    keeper.close().await;
    Ok(())
}

/// Reads, thinks, writes: as a shop with a database does, and as unsafe as that.
async fn buy(stock: &AtomicU32) -> bool {
    let left = stock.load(Ordering::Relaxed);
    tokio::task::yield_now().await;
    if left == 0 {
        return false;
    }
    stock.store(left - 1, Ordering::Relaxed);
    true
}
