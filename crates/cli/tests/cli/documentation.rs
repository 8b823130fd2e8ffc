//! The examples of the documentation do what they say.

use crate::world::{Running, World};

/// Returns a PATH on which the command comes first.
fn path_with_the_command() -> String {
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_lockkeeper"));
    let folder = program.parent().expect("it lies in a folder").display();
    format!("{folder}:{}", std::env::var("PATH").expect("there is a PATH"))
}

/// Returns the blocks of a page that are marked as this language.
fn blocks<'a>(page: &'a str, language: &str) -> impl Iterator<Item = &'a str> {
    let parts: Vec<&str> = page.split(&format!("```{language}\n")).skip(1).collect();
    parts.into_iter().map(|rest| rest.split("```").next().expect("split gives at least one part"))
}

#[test]
fn every_example_of_the_page_runs() {
    let page = include_str!("../../../../docs/cli.md");
    let path = path_with_the_command();
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

/// The lines of the README that use the command. The others build it.
#[test]
fn the_commands_of_the_readme_do_what_it_says() {
    let readme = include_str!("../../../../README.md");
    let lines: Vec<&str> =
        blocks(readme, "sh").flat_map(str::lines).filter(|line| line.starts_with("lockkeeper ")).collect();
    let [nightly, deploy, list] = lines[..] else { panic!("{lines:?}") };
    let world = World::new();
    for script in ["backup.sh", "deploy.sh"] {
        let text = format!("#!/bin/sh\necho \"$LOCKKEEPER_NAME\" > {script}.ran\n");
        std::fs::write(world.path(script), text).expect("written");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        std::fs::set_permissions(world.path(script), mode).expect("set");
    }
    let run = |line: &str| {
        let mut shell = world.command("sh");
        shell.args(["-euc", line]).env("PATH", path_with_the_command());
        Running::spawn(shell).done()
    };
    for (line, script, name) in
        [(nightly, "backup.sh.ran", "nightly\n"), (deploy, "deploy.sh.ran", "deploy\n")]
    {
        let done = run(line);
        assert_eq!((done.code, world.read(script).as_str()), (Some(0), name), "{line}: {done:?}");
    }
    assert_eq!(world.run(&["acquire", "nightly", "--label", "another one"]).code, Some(0));
    assert_eq!(run(nightly).code, Some(75), "{nightly}");
    let listed = run(list);
    assert!(listed.code == Some(0) && listed.out.contains("another one"), "{listed:?}");
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
