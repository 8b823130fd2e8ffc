//! The examples of the documentation do what they say.

use crate::world::{Running, World};

/// Returns the blocks of a page that are marked as this language.
fn blocks<'a>(page: &'a str, language: &str) -> impl Iterator<Item = &'a str> {
    let parts: Vec<&str> = page.split(&format!("```{language}\n")).skip(1).collect();
    parts.into_iter().map(|rest| rest.split("```").next().expect("split gives at least one part"))
}

#[test]
fn every_example_of_the_page_runs() {
    let page = include_str!("../../../../docs/cli.md");
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_lockkeeper"));
    let folder = program.parent().expect("it lies in a folder").display().to_string();
    let path = format!("{folder}:{}", std::env::var("PATH").expect("there is a PATH"));
    let examples: Vec<&str> = blocks(page, "sh").collect();
    assert!(examples.len() >= 9, "{}", examples.len());
    for example in examples {
        let world = World::new();
        let mut shell = world.command("sh");
        shell.args(["-euc", example]).env("PATH", &path);
        let done = Running::spawn(shell).done();
        assert_eq!(done.code, Some(0), "{example}\n{done:?}");
    }
}

/// One server for the whole page, whose examples build on each other.
#[cfg(feature = "serve")]
#[test]
fn every_example_of_the_page_on_http_runs() {
    let page = include_str!("../../../../docs/http.md");
    let world = World::new();
    let (server, url, token) = crate::serve::start(&world);
    let script: String = blocks(page, "sh").collect();
    assert!(blocks(page, "sh").count() >= 12, "{script}");
    let python: String = blocks(page, "python").collect();
    for (program, argument, text) in [("bash", "-euo pipefail -c", script), ("python3", "-c", python)] {
        let mut command = world.command(program);
        command.args(argument.split(' ')).arg(&text).env("URL", &url).env("TOKEN", &token);
        let done = Running::spawn(command).done();
        assert_eq!(done.code, Some(0), "{text}\n{done:?}");
        assert!(!done.out.contains("\"code\":\"in") && !done.out.contains("not_json"), "{}", done.out);
    }
    server.end();
}
