//! One process of the tests between processes: see `lockkeeper_testkit::processes`.

#[cfg(target_os = "linux")]
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    use lockkeeper_testkit::processes::{Task, work};

    work(Task::from_words(std::env::args().skip(1))?).await
}

#[cfg(not(target_os = "linux"))]
fn main() {
    eprintln!("the tests between processes need Linux");
    std::process::exit(69);
}
