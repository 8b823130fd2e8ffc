//! Runs the behaviour suite and refinement on every shape of a store: over TCP, by socket, with TLS, and so on.

use std::{fmt, process::ExitCode, time::Duration};

use libtest_mimic::{Arguments, Failed, Trial};
use lockkeeper::url;

use crate::{
    behaviour,
    refinement::{self, Subject},
};

/// One shape of a store.
#[derive(Clone, Debug)]
pub struct Shape {
    name: &'static str,
    url: String,
    tolerance: Duration,
    /// How many random sequences of requests are compared with the model.
    refinements: u64,
}

impl Shape {
    /// The store at `url`, which tests show as `name`.
    pub fn new(name: &'static str, url: impl Into<String>) -> Self {
        Self { name, url: url.into(), tolerance: Duration::ZERO, refinements: 2 }
    }

    /// How far times that refinement compares may be apart beyond the usual.
    pub fn tolerance(self, tolerance: Duration) -> Self {
        Self { tolerance, ..self }
    }

    /// Without refinement: the store is no copy of the model.
    pub fn without_refinement(self) -> Self {
        Self { refinements: 0, ..self }
    }

    fn trials(&self) -> Result<Vec<Trial>, String> {
        let url = self.url.clone();
        let connect = move || url::connector(&url).expect("a good URL");
        let mut trials = behaviour::trials(connect).map_err(|error| format!("{}: {error}", self.name))?;
        for seed in 0..self.refinements {
            let shape = self.clone();
            trials.push(Trial::test(format!("refinement::seed_{seed}"), move || shape.refine(seed)));
        }
        Ok(trials.into_iter().map(|trial| trial.with_kind(self.name)).collect())
    }

    fn refine(self, seed: u64) -> Result<(), Failed> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (url, tolerance) = (self.url, self.tolerance);
        let mut subject = Subject::in_real_time(move || url::connector(&url));
        if !tolerance.is_zero() {
            subject = subject.tolerance(tolerance);
        }
        runtime
            .block_on(refinement::check(&subject, seed, 60))
            .map(drop)
            .map_err(|failure| failure.to_string().into())
    }
}

/// The `main` of a test program: starts the servers, runs everything on each shape of them, by default `threads` at once,
/// and ends the servers.
pub fn run<S, E: fmt::Display>(
    threads: usize,
    start: impl FnOnce() -> Result<S, E>,
    shapes: impl FnOnce(&S) -> Vec<Shape>,
) -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(threads);
    let all = start().map_err(|error| error.to_string()).and_then(|servers| {
        let trials: Result<Vec<_>, String> = shapes(&servers).iter().map(Shape::trials).collect();
        Ok((servers, trials?.into_iter().flatten().collect()))
    });
    match all {
        Ok((servers, trials)) => {
            let outcome = libtest_mimic::run(&arguments, trials);
            drop(servers);
            outcome.exit_code()
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
