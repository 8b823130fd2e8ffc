//! A program that takes locks and ends, in the way that its first argument names: the subject of `tests/exits.rs`.
//!
//! It never closes its keeper. It says `held` once it holds its locks, and then ends at once. The ways `told…` end when their
//! standard input has a line, the ways `refused` and `partly_refused` then ask the store first, and the way `signalled` is the
//! example `leader_election`, which ends by a signal.

use std::{
    cell::RefCell,
    error::Error,
    future::{pending, poll_fn},
    io::{self, Write as _},
    process::ExitCode,
    task::Poll,
    thread,
    time::Duration,
};

#[expect(dead_code, reason = "the example has a main of its own")]
#[path = "../../../lockkeeper/examples/leader_election.rs"]
mod leader_election;

use lockkeeper::{Guard, Keeper, KeeperBuilder, StoreError, blocking, testing};
use tokio::{
    runtime::{Builder, Runtime},
    sync::oneshot,
    task::yield_now,
};

type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

/// Locks at a URL under a name, and ends.
type Way = fn(&str, &str) -> Outcome;

/// All ways, by name.
const WAYS: &[(&str, Way)] = &[
    ("current_thread", |url, name| end_of_main(&current_thread()?, url, name)),
    ("workers", |url, name| end_of_main(&workers(2)?, url, name)),
    ("one_worker", |url, name| end_of_main(&workers(1)?, url, name)),
    ("task_on_current_thread", |url, name| end_of_task(&current_thread()?, url, name)),
    ("task_on_one_worker", |url, name| end_of_task(&workers(1)?, url, name)),
    ("runtime_dropped", |url, name| runtime_ends(current_thread()?, url, name, drop)),
    ("workers_dropped", |url, name| runtime_ends(workers(1)?, url, name, drop)),
    ("shutdown_timeout", |url, name| {
        runtime_ends(workers(1)?, url, name, |runtime| runtime.shutdown_timeout(Duration::from_secs(5)))
    }),
    ("after_the_runtime", after_the_runtime),
    ("keeper_first", keeper_first),
    ("released_last", released_last),
    ("released_and_dropped", released_and_dropped),
    ("panic", panics),
    ("several_keepers", several_keepers),
    ("many_guards", many_guards),
    ("leave_in_flight_on_current_thread", |url, name| leave_in_flight(&current_thread()?, url, name)),
    ("leave_in_flight_on_one_worker", |url, name| leave_in_flight(&workers(1)?, url, name)),
    ("claims_in_flight_on_current_thread", |url, name| claims_in_flight(&current_thread()?, url, name)),
    ("claims_in_flight_on_one_worker", |url, name| claims_in_flight(&workers(1)?, url, name)),
    ("wait_cancelled", wait_cancelled),
    ("observed", observed),
    ("nested_runtime", nested_runtime),
    ("thread_local", in_a_thread_local),
    ("blocking", with_threads),
    ("blocking_in_a_task", blocking_in_a_task),
    ("told", |url, name| told(url, name, Duration::from_secs(3), false)),
    ("told_before_renewals", |url, name| told(url, name, Duration::from_secs(60), false)),
    ("refused", |url, name| told(url, name, Duration::from_secs(3), true)),
    ("partly_refused", partly_refused),
    ("min_hold", |url, name| min_hold(url, name, false)),
    ("min_hold_released", |url, name| min_hold(url, name, true)),
    ("signalled", signalled),
];

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words == ["ways"] {
        for (way, _) in WAYS {
            println!("{way}");
        }
        return ExitCode::SUCCESS;
    }
    let [way, url, name] = &words[..] else {
        eprintln!("usage: exits ways | exits WAY URL NAME");
        return ExitCode::from(64);
    };
    let Some((_, end)) = WAYS.iter().find(|(known, _)| known == way) else {
        eprintln!("no such way: {way}");
        return ExitCode::from(64);
    };
    match end(url, name) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn current_thread() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

fn workers(count: usize) -> io::Result<Runtime> {
    Builder::new_multi_thread().worker_threads(count).enable_all().build()
}

/// Says that the locks are held, and that the end begins.
fn held() {
    println!("held");
    // Without a reader nobody measures.
    io::stdout().flush().ok();
}

/// The disk of a shared machine can stand still for seconds, and no way is about that.
fn builder(url: &str) -> Result<KeeperBuilder, StoreError> {
    Ok(lockkeeper::builder(url)?.request_limit(Duration::from_secs(20)))
}

async fn connect(url: &str) -> Result<Keeper, StoreError> {
    builder(url)?.connect().await
}

async fn lock(url: &str, name: &str) -> Result<(Keeper, Guard), lockkeeper::Error> {
    let keeper = connect(url).await?;
    let guard = keeper.mutex(name).lock().await?;
    Ok((keeper, guard))
}

fn end_of_main(runtime: &Runtime, url: &str, name: &str) -> Outcome {
    runtime.block_on(async {
        let (_keeper, _guard) = lock(url, name).await?;
        held();
        Ok(())
    })
}

fn end_of_task(runtime: &Runtime, url: &str, name: &str) -> Outcome {
    let (url, name) = (url.to_owned(), name.to_owned());
    runtime.block_on(runtime.spawn(async move {
        let (_keeper, _guard) = lock(&url, &name).await?;
        held();
        Ok(())
    }))?
}

/// A task holds the lock for ever, and its runtime ends.
fn runtime_ends(runtime: Runtime, url: &str, name: &str, end: impl FnOnce(Runtime)) -> Outcome {
    let (url, name) = (url.to_owned(), name.to_owned());
    let (tell, is_held) = oneshot::channel();
    runtime.spawn(async move {
        let locked = lock(&url, &name).await.expect("free");
        tell.send(()).expect("somebody listens");
        pending::<()>().await;
        drop(locked);
    });
    runtime.block_on(is_held)?;
    held();
    end(runtime);
    Ok(())
}

fn after_the_runtime(url: &str, name: &str) -> Outcome {
    let runtime = current_thread()?;
    let _locked = runtime.block_on(lock(url, name))?;
    drop(runtime);
    held();
    Ok(())
}

fn keeper_first(url: &str, name: &str) -> Outcome {
    current_thread()?.block_on(async {
        let (keeper, guard) = lock(url, name).await?;
        drop(keeper);
        held();
        drop(guard);
        Ok(())
    })
}

/// The release has its answer, so nothing is left to wait for.
fn released_last(url: &str, name: &str) -> Outcome {
    current_thread()?.block_on(async {
        let (keeper, guard) = lock(url, name).await?;
        drop(keeper);
        held();
        guard.release().await?;
        Ok(())
    })
}

/// The future of a release is the last handle, and is dropped after its first poll.
fn released_and_dropped(url: &str, name: &str) -> Outcome {
    current_thread()?.block_on(async {
        let (keeper, guard) = lock(url, name).await?;
        drop(keeper);
        held();
        tokio::select! {
            biased;
            _ = guard.release() => {}
            () = yield_now() => {}
        }
        Ok(())
    })
}

fn panics(url: &str, name: &str) -> Outcome {
    current_thread()?.block_on(async {
        let (_keeper, _guard) = lock(url, name).await?;
        held();
        // Nobody wants to read about it.
        std::panic::set_hook(Box::new(|_| {}));
        panic!("as its way says");
    })
}

fn several_keepers(url: &str, name: &str) -> Outcome {
    current_thread()?.block_on(async {
        let (_one, _first) = lock(url, &format!("{name}/1")).await?;
        let (_two, _second) = lock(url, &format!("{name}/2")).await?;
        // Another store, in virtual time: its end must not wait.
        let _virtual = testing::Virtual::new().keeper().await.mutex(name).lock().await?;
        held();
        Ok(())
    })
}

fn many_guards(url: &str, name: &str) -> Outcome {
    current_thread()?.block_on(async {
        let keeper = connect(url).await?;
        let mut guards = Vec::new();
        for number in 0..300 {
            guards.push(keeper.mutex(&format!("{name}/{number}")).lock().await?);
        }
        drop(keeper);
        held();
        Ok(())
    })
}

/// The leave of one guard was given to the connection, but the runtime has had no turn to send it, when the last handle
/// goes.
fn leave_in_flight(runtime: &Runtime, url: &str, name: &str) -> Outcome {
    let (url, name) = (url.to_owned(), name.to_owned());
    runtime.block_on(runtime.spawn(async move {
        let keeper = connect(&url).await?;
        let first = keeper.mutex(&format!("{name}/1")).lock().await?;
        let second = keeper.mutex(&format!("{name}/2")).lock().await?;
        held();
        drop(first);
        yield_now().await;
        drop((second, keeper));
        Ok(())
    }))?
}

/// Gives as many claims as may be in flight to the connection and drops them, before the last handle goes.
fn claims_in_flight(runtime: &Runtime, url: &str, name: &str) -> Outcome {
    let (url, name) = (url.to_owned(), name.to_owned());
    runtime.block_on(runtime.spawn(async move {
        let (keeper, _guard) = lock(&url, &name).await?;
        let mutexes: Vec<_> = (0..8).map(|number| keeper.mutex(&format!("{name}/{number}"))).collect();
        let mut claims: Vec<_> = mutexes.iter().map(|mutex| Box::pin(mutex.lock())).collect();
        poll_fn(|context| {
            for claim in &mut claims {
                // Hardly any is answered yet, and a guard that came is dropped.
                drop(claim.as_mut().poll(context));
            }
            Poll::Ready(())
        })
        .await;
        held();
        Ok(())
    }))?
}

/// A claim that waits in the queue is dropped, and its keeper with it.
fn wait_cancelled(url: &str, name: &str) -> Outcome {
    current_thread()?.block_on(async {
        let (_holder, _guard) = lock(url, name).await?;
        let keeper = connect(url).await?;
        let mutex = keeper.mutex(name);
        let mut locking = Box::pin(mutex.lock());
        tokio::select! {
            _ = &mut locking => return Err("it is held twice".into()),
            () = async {
                while keeper.stats().waiting == 0
                    || keeper.inspect(name).await.is_ok_and(|view| view.is_none_or(|view| view.waiters.is_empty()))
                {
                    yield_now().await;
                }
            } => {}
        }
        held();
        drop(locking);
        Ok(())
    })
}

/// A task of the keeper's own looks at an election when the last handle goes.
fn observed(url: &str, name: &str) -> Outcome {
    current_thread()?.block_on(async {
        let keeper = connect(url).await?;
        let election = keeper.election(name);
        let mut observers: Vec<_> = (0..50).map(|_| election.observe()).collect();
        let _leadership = election.campaign("me").await?;
        for observer in &mut observers {
            observer.next().await.ok_or("it ended")??;
        }
        held();
        Ok(())
    })
}

/// The guard goes in a runtime inside of a thread of another runtime.
fn nested_runtime(url: &str, name: &str) -> Outcome {
    let runtime = current_thread()?;
    let (url, name) = (url.to_owned(), name.to_owned());
    runtime.block_on(async {
        let locked = lock(&url, &name).await?;
        tokio::task::spawn_blocking(move || {
            current_thread()?.block_on(async move {
                held();
                yield_now().await;
                drop(locked);
            });
            Ok(())
        })
        .await?
    })
}

fn in_a_thread_local(url: &str, name: &str) -> Outcome {
    thread_local! {
        static LOCKED: RefCell<Option<(Keeper, Guard)>> = const { RefCell::new(None) };
    }
    let runtime = current_thread()?;
    let locked = runtime.block_on(lock(url, name))?;
    held();
    let thread = thread::spawn(move || LOCKED.set(Some(locked)));
    thread.join().map_err(|_| "it panicked")?;
    Ok(())
}

fn with_threads(url: &str, name: &str) -> Outcome {
    let keeper = blocking::Keeper::build(builder(url)?)?;
    let _guard = keeper.mutex(name).lock()?;
    drop(keeper);
    held();
    Ok(())
}

fn blocking_in_a_task(url: &str, name: &str) -> Outcome {
    let (url, name) = (url.to_owned(), name.to_owned());
    let runtime = current_thread()?;
    runtime.block_on(runtime.spawn(async move { with_threads(&url, &name) }))?
}

fn told(url: &str, name: &str, lease: Duration, refused: bool) -> Outcome {
    current_thread()?.block_on(async {
        let keeper = connect(url).await?;
        let _guard = keeper.mutex(name).lease(lease).lock().await?;
        held();
        io::stdin().read_line(&mut String::new())?;
        if refused {
            keeper.inspect(name).await.err().ok_or("the store can be reached")?;
            held();
        }
        Ok(())
    })
}

/// Holds the first of two names, and asks for the second one, whose server does not answer.
fn partly_refused(url: &str, names: &str) -> Outcome {
    let (name, refused) = names.split_once(' ').ok_or("two names")?;
    current_thread()?.block_on(async {
        let keeper = lockkeeper::builder(url)?.request_limit(Duration::from_millis(300)).connect().await?;
        // Opens the connection to its server.
        keeper.mutex(refused).lock().await?.release().await?;
        let _guard = keeper.mutex(name).lock().await?;
        held();
        io::stdin().read_line(&mut String::new())?;
        keeper.mutex(refused).try_lock().await.err().ok_or("the store can be reached")?;
        held();
        Ok(())
    })
}

/// Ends long before the minimum hold, which others must wait for.
fn min_hold(url: &str, name: &str, releases: bool) -> Outcome {
    current_thread()?.block_on(async {
        let keeper = connect(url).await?;
        let guard = keeper.mutex(name).min_hold(Duration::from_secs(2)).lock().await?;
        held();
        if releases {
            guard.release().await?;
        }
        Ok(())
    })
}

fn signalled(url: &str, name: &str) -> Outcome {
    workers(2)?.block_on(leader_election::run(url, name, Duration::from_secs(60)))
}
