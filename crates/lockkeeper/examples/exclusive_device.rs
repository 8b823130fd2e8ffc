//! cargo run -p lockkeeper --example exclusive_device [URL]
//!
//! One printer, four programs that print. Lines of two jobs never mix, and a program that waits
//! too long says so instead of waiting for ever.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use lockkeeper::{AcquireError, Error};

/// Only one may talk to it at a time; it has no way to tell two apart.
#[derive(Default)]
struct Printer {
    busy: AtomicBool,
}

impl Printer {
    async fn print(&self, program: u32) {
        assert!(!self.busy.swap(true, Ordering::AcqRel), "two programs print at once");
        for line in 1..=3 {
            println!("program {program}: line {line}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.busy.store(false, Ordering::Release);
    }
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::args().nth(1).map_or_else(lockkeeper::url::default_store, Ok)?;
    let printer = Arc::new(Printer::default());
    let programs = (1..=4).map(|program| {
        let (url, printer) = (url.clone(), printer.clone());
        tokio::spawn(async move {
            let keeper = lockkeeper::connect(&url).await?;
            let device = keeper.mutex("example/printer").label("printing a page");
            match device.lock_within(Duration::from_secs(10)).await {
                Ok(guard) => {
                    guard.run(printer.print(program)).await?;
                    guard.release().await?;
                }
                Err(AcquireError::TimedOut { ahead, .. }) => {
                    println!("program {program}: gave up, {} ahead in the queue", ahead.unwrap_or(0));
                }
                Err(error) => return Err(error.into()),
            }
            keeper.close().await;
            Ok::<(), Error>(())
        })
    });
    for program in programs.collect::<Vec<_>>() {
        program.await.expect("no program panics")?;
    }
    Ok(())
}
