//! The examples of `docs/cli.md` do what they say.

use crate::world::{Running, World};

#[test]
fn every_example_of_the_page_runs() {
    let page = include_str!("../../../../docs/cli.md");
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_lockkeeper"));
    let folder = program.parent().expect("it lies in a folder").display().to_string();
    let path = format!("{folder}:{}", std::env::var("PATH").expect("there is a PATH"));
    let examples: Vec<&str> = page
        .split("```sh\n")
        .skip(1)
        .map(|rest| rest.split("```").next().expect("split gives at least one part"))
        .collect();
    assert!(examples.len() >= 9, "{}", examples.len());
    for example in examples {
        let world = World::new();
        let mut shell = world.command("sh");
        shell.args(["-euc", example]).env("PATH", &path);
        let done = Running::spawn(shell).done();
        assert_eq!(done.code, Some(0), "{example}\n{done:?}");
    }
}
