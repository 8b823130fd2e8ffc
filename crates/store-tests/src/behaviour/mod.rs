//! The behaviour suite: the duties of every store, seen through the public API only.
//!
//! There is one list of tests for all stores. A test that a store cannot pass, by its [`Capability`], is not in that
//! store's list. Stores are real and so is time: tests wait for events and state, never for "long enough", and hold
//! short leases.
//!
//! A test is an `async fn(&Fixture)`: the [`Fixture`] gives it keepers, each another process as far as
//! the store can tell, and names that no other test uses. So all tests run at the same time on one
//! shared server. After a test, the fixture checks that nothing is left of it.

mod blocking;
mod closing;
mod detached;
mod election;
mod errors;
mod fence;
mod fixture;
mod guard;
mod latch;
mod mutex;
mod numbers;
mod operators;
mod reentrancy;
mod runtimes;
mod rw_lock;
mod semaphore;
mod several;
mod waiting;

use std::{any::Any, fmt, panic::Location, sync::Arc, time::Duration};

use libtest_mimic::{Failed, Trial};
use lockkeeper_core::{
    Capability, StoreError,
    store::{BoxFuture, Connector},
};
use tokio::{
    runtime::{Builder, Runtime},
    time::timeout,
};

pub use fixture::Fixture;

use fixture::Suite;

/// How long one test may take. A test that hangs fails.
const LIMIT: Duration = Duration::from_secs(60);

/// The end of a test.
type Outcome = Result<(), Failure>;

/// The reason why a test failed, and the place: any error becomes one by `?`.
struct Failure(String);

impl Failure {
    #[track_caller]
    fn new(what: impl fmt::Display) -> Self {
        let at = Location::caller();
        Self(format!("{}:{}: {what}", at.file(), at.line()))
    }
}

impl<E: std::error::Error> From<E> for Failure {
    #[track_caller]
    fn from(error: E) -> Self {
        Self::new(error)
    }
}

/// One test, and the condition for a store to pass it.
struct Test {
    name: &'static str,
    needs: fn(&Capability) -> bool,
    run: for<'a> fn(&'a Fixture) -> BoxFuture<'a, Outcome>,
}

/// The tests of one subject: their names, each with its condition if not every store can pass it.
macro_rules! tests {
    (@needs) => { |_| true };
    (@needs $needs:expr) => { $needs };
    ($($test:ident $(if $needs:expr)?),+ $(,)?) => {
        pub(super) fn tests() -> Vec<$crate::behaviour::Test> {
            vec![$($crate::behaviour::Test {
                name: stringify!($test),
                needs: tests!(@needs $($needs)?),
                run: |fixture| Box::pin($test(fixture)),
            }),+]
        }
    };
}
use tests;

/// The suite for the store that `connect` leads to: every test that this store can pass.
///
/// # Errors
/// [`StoreError`] if the store cannot be connected to.
pub fn trials(connect: impl Fn() -> Connector + Send + Sync + 'static) -> Result<Vec<Trial>, StoreError> {
    let subjects = [
        ("mutex", mutex::tests()),
        ("reentrancy", reentrancy::tests()),
        ("rw_lock", rw_lock::tests()),
        ("semaphore", semaphore::tests()),
        ("latch", latch::tests()),
        ("election", election::tests()),
        ("several", several::tests()),
        ("guard", guard::tests()),
        ("detached", detached::tests()),
        ("fence", fence::tests()),
        ("numbers", numbers::tests()),
        ("waiting", waiting::tests()),
        ("operators", operators::tests()),
        ("errors", errors::tests()),
        ("closing", closing::tests()),
        ("blocking", blocking::tests()),
        ("runtimes", runtimes::tests()),
    ];
    let suite = Arc::new(Suite::open(runtime(), connect)?);
    let mut trials = Vec::new();
    let can = suite.capability();
    let has = |subject: &str| match subject {
        "semaphore" | "latch" => can.counts_permits,
        "fence" => can.fences,
        _ => true,
    };
    for (subject, tests) in subjects.into_iter().filter(|(subject, _)| has(subject)) {
        for test in tests.into_iter().filter(|test| (test.needs)(suite.capability())) {
            let (name, suite) = (format!("{subject}::{}", test.name), suite.clone());
            trials.push(Trial::test(name.clone(), move || run(&test, Fixture::new(suite, &name))));
        }
    }
    Ok(trials)
}

/// Makes a runtime with more than one worker, so that tasks of a test really run at the same time.
fn runtime() -> Runtime {
    let built = Builder::new_multi_thread().worker_threads(2).enable_all().build();
    built.expect("the operating system gives threads")
}

fn run(test: &Test, fixture: Fixture) -> Result<(), Failed> {
    let runtime = runtime();
    let (body, fixture) = (test.run, Arc::new(fixture));
    // A task of its own, so that a panic is an outcome and every future of a test must be `Send`.
    let task = runtime.spawn({
        let fixture = fixture.clone();
        async move {
            body(&fixture).await?;
            fixture.nothing_is_left().await
        }
    });
    let outcome = runtime.block_on(timeout_in_runtime(task));
    if !matches!(outcome, Ok(Ok(Ok(())))) {
        runtime.block_on(fixture.clean_up());
    }
    // A thread that still blocks in a failed test must not block the others.
    runtime.shutdown_background();
    match outcome {
        Ok(Ok(Ok(()))) => Ok(()),
        Ok(Ok(Err(Failure(what)))) => Err(what.into()),
        Ok(Err(ended)) => Err(panic_text(ended.into_panic().as_ref()).into()),
        Err(_) => Err(format!("not done after {LIMIT:?}").into()),
    }
}

/// Calls `timeout` in the runtime, which it needs when it is called, not only when it is polled.
async fn timeout_in_runtime<T>(task: impl Future<Output = T>) -> Result<T, tokio::time::error::Elapsed> {
    timeout(LIMIT, task).await
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("the test panicked").to_owned()
}
