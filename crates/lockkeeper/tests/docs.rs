//! The documentation as users read it: examples name this crate, which they depend on, and never the one behind it.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// All source files below `folder`.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let below = |path: PathBuf| if path.is_dir() { sources(&path) } else { vec![path] };
    entries.flat_map(below).filter(|path| path.extension().is_some_and(|end| end == "rs")).collect()
}

/// Rustdoc shows this line: it is documentation, and not a hidden line of an example.
fn is_shown(line: &str) -> bool {
    let text = line.trim_start().strip_prefix("///").or_else(|| line.trim_start().strip_prefix("//!"));
    text.is_some_and(|text| !text.trim_start().starts_with("# "))
}

#[test]
fn examples_name_the_crate_that_users_depend_on() {
    let core = Path::new(env!("CARGO_MANIFEST_DIR")).join("../core/src");
    let mut lines = 0;
    for path in sources(&core) {
        // This module is not part of `lockkeeper`: it is for authors of stores, who depend on the core.
        if path.starts_with(core.join("model")) {
            continue;
        }
        let text = fs::read_to_string(&path).expect("a source file");
        for (number, line) in text.lines().enumerate().filter(|(_, line)| is_shown(line)) {
            lines += 1;
            let place = format!("{}:{}", path.display(), number + 1);
            assert!(!line.contains("lockkeeper_core::"), "{place}: write lockkeeper:: instead\n{line}");
        }
    }
    assert!(lines > 1000, "only {lines} lines of documentation were found");
}
