//! Many shells on one name.

use crate::world::{Running, World};

#[test]
fn sixteen_shells_count_without_losing_one() {
    const SHELLS: usize = 16;
    const TIMES: usize = 5;
    let world = World::new();
    std::fs::write(world.path("counter"), "0\n").expect("written");
    // Read, wait a moment, write: two at once would lose a count.
    let step = "n=$(cat counter); sleep 0.01; echo $((n + 1)) > counter";
    let script = format!("for i in $(seq {TIMES}); do \"$L\" run count -- sh -c '{step}' || exit 1; done");
    let shells: Vec<Running> = (0..SHELLS)
        .map(|_| {
            let mut shell = world.command("sh");
            shell.args(["-c", &script]);
            Running::spawn(shell)
        })
        .collect();
    for shell in shells {
        let done = shell.done();
        assert_eq!(done.code, Some(0), "{done:?}");
    }
    assert_eq!(world.read("counter").trim(), (SHELLS * TIMES).to_string());
}

#[test]
fn permits_and_shared_holds_run_together() {
    for options in [vec!["x", "--permits", "1/2"], vec!["x", "-s", "--fifo"]] {
        let world = World::new();
        // Each waits for the other, so both must be inside at once.
        let script = |mine: &str, other: &str| {
            format!(
                "echo > {mine}; until [ -e {other} ]; do sleep 0.01; done; echo $LOCKKEEPER_FLOOR > {mine}"
            )
        };
        let one = world.start_run(&options, &script("one", "two"));
        let two = world.start_run(&options, &script("two", "one"));
        assert_eq!((one.done().code, two.done().code), (Some(0), Some(0)), "{options:?}");
        // The floor is the smallest token that held when the later one came: the same for both.
        assert_eq!(world.line("one"), world.line("two"));
    }
}

#[test]
fn an_exclusive_run_waits_for_shared_ones_and_all_permits() {
    let world = World::new();
    for (held, asked) in
        [(vec!["-s"], vec![]), (vec![], vec!["-s"]), (vec!["--permits", "1/2"], vec!["--permits", "2/2"])]
    {
        let mut acquire = vec!["acquire", "x"];
        acquire.extend(held);
        let lease = world.run(&acquire).out;
        let mut run = vec!["run", "x", "-n"];
        run.extend(asked);
        run.extend(["--", "true"]);
        assert_eq!(world.run(&run).code, Some(75), "{run:?}");
        assert_eq!(world.run_with(&["release", "-"], &lease).code, Some(0));
        assert_eq!(world.run(&run).code, Some(0), "{run:?}");
    }
}
