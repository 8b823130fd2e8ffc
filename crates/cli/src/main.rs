//! The command `lockkeeper`: see `lockkeeper --help` and `docs/cli.md`.
//!
//! This file calls the part of the program that is wanted, and turns its end into an exit code.

#[cfg(not(unix))]
compile_error!("the command needs process groups and signals; on this system use the library");

mod acquisition;
mod args;
mod command;
mod doctor;
mod evict;
mod exit;
mod group;
mod guardian;
mod hint;
mod latch;
mod lease;
mod observe;
mod processes;
mod progress;
#[cfg(feature = "quorum")]
mod quorum;
mod run;
#[cfg(feature = "serve")]
mod serve;
mod signals;
mod store;
mod terminal;
mod text;
mod view;
mod warnings;
mod watch;

use std::{
    ffi::OsString,
    process::{ExitCode, Termination},
};

use clap::{CommandFactory, Parser, error::ErrorKind};

use crate::{
    args::{Action, Cli},
    exit::Failure,
};

fn main() -> ExitCode {
    // A mistake of ours becomes one line and one code, like every other end. If it leaves a guardian behind, that ends
    // CMD.
    std::panic::set_hook(Box::new(|panic| {
        let what = panic.to_string().replace('\n', " ");
        text::say(&format!("internal error: {what}; please report it"));
        std::process::exit(exit::INTERNAL.into());
    }));
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    // The two roles that this program plays for itself come before its options are read.
    let result = match args.first().and_then(|role| role.to_str()) {
        Some(command::ROLE) => Ok(command::main(&args[1..])),
        Some(guardian::ROLE) => {
            let args: Vec<String> = args[1..].iter().map(|arg| arg.to_string_lossy().into_owned()).collect();
            guardian::main(&args).map(|()| 0)
        }
        _ => parse().and_then(|cli| cli.map_or(Ok(0), |cli| act(&cli))),
    };
    warnings::flush();
    let code = result.unwrap_or_else(|failure| {
        if let Some(message) = failure.message {
            text::say(&message);
        }
        failure.code
    });
    ExitCode::from(code).report()
}

/// Reads the command line; `None` if it only asks for help, which has been printed.
fn parse() -> Result<Option<Cli>, Failure> {
    let error = match Cli::try_parse() {
        Ok(cli) => return Ok(Some(cli)),
        Err(error) => error,
    };
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        return text::print(&error.render().to_string()).map(|()| None);
    }
    let words: Vec<String> =
        std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    Err(Failure::usage(store::without_passwords(&hint::explain(&error, &words), words)))
}

fn act(cli: &Cli) -> Result<u8, Failure> {
    match &cli.action {
        Action::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "lockkeeper", &mut script);
            return text::print(&String::from_utf8_lossy(&script)).map(|()| 0);
        }
        Action::Man => return manual().map(|()| 0),
        Action::Schema => return schema(&cli.store).map(|()| 0),
        #[cfg(feature = "serve")]
        Action::Serve(args) => return serve::serve(&cli.store, args),
        _ => {}
    }
    let quiet = match &cli.action {
        Action::Run(args) => args.wait.quiet,
        Action::Acquire(args) => args.wait.quiet,
        Action::Elect(args) => args.wait.quiet,
        Action::Latch(_) => false,
        // The others ask once, and their error says it all.
        _ => true,
    };
    if !quiet {
        warnings::listen(cli.store.verbose);
    }
    // One thread: a stop signal then stops this process before the call that sent it returns.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::internal("cannot start", error))?;
    if let Action::Doctor(args) = &cli.action {
        return runtime.block_on(doctor::doctor(&cli.store, args));
    }
    #[cfg(feature = "quorum")]
    if let Action::Quorum(args) = &cli.action {
        return runtime.block_on(quorum::quorum(&cli.store, args));
    }
    runtime.block_on(async {
        let connected = &store::connect(&cli.store).await?;
        let keeper = &connected.keeper;
        let result = match &cli.action {
            Action::Run(args) => run::run(connected, args).await,
            Action::Acquire(args) => lease::acquire(connected, args).await,
            Action::Renew(args) => lease::renew(keeper, args).await,
            Action::Release(args) => lease::release(keeper, args).await,
            Action::Elect(args) if args.observe => observe::observe(keeper, args).await,
            Action::Elect(args) => run::elect(connected, args).await,
            Action::Latch(args) => latch::latch(keeper, args).await,
            Action::List(args) => view::list(keeper, args).await,
            Action::Show(args) => view::show(keeper, args).await,
            Action::Watch(args) => watch::watch(keeper, args).await,
            Action::Evict(args) => evict::evict(keeper, args).await,
            Action::Completions { .. } | Action::Doctor(_) | Action::Man | Action::Schema => Ok(0),
            #[cfg(feature = "quorum")]
            Action::Quorum(_) => Ok(0),
            #[cfg(feature = "serve")]
            Action::Serve(_) => Ok(0),
        };
        store::close(keeper).await;
        result
    })
}

/// Prints the SQL for the administrator who makes the tables. It asks no server.
fn schema(store: &args::StoreArgs) -> Result<(), Failure> {
    text::print(&lockkeeper::schema::sql(&store::url(store)?)?)
}

/// Prints the manual page of the program, followed by those of its subcommands.
fn manual() -> Result<(), Failure> {
    let mut page = Vec::new();
    let mut program = Cli::command();
    program.build();
    let failed = |error: std::io::Error| Failure::internal("cannot write the manual", error);
    clap_mangen::Man::new(program.clone()).render(&mut page).map_err(failed)?;
    for part in program.get_subcommands().filter(|part| !part.is_hide_set()) {
        clap_mangen::Man::new(part.clone()).render(&mut page).map_err(failed)?;
    }
    text::print(&String::from_utf8_lossy(&page))
}
