//! Explains a command line that cannot be read: its mistake, and the remedy or the word that was probably meant. Pure.

use clap::{
    CommandFactory, Error,
    error::{ContextKind, ContextValue, ErrorKind},
};

use crate::args::Cli;

/// Returns one line about `error`, which `words` led to.
pub(crate) fn explain(error: &Error, words: &[String]) -> String {
    // The first paragraph names the mistake. The rest repeats the help.
    let rendered = error.render().to_string();
    let what: Vec<&str> = rendered.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
    let what = what.join(" ");
    let what = what.strip_prefix("error: ").unwrap_or(&what);
    let remedy = remedy(error, words).unwrap_or_else(|| "see lockkeeper --help".to_owned());
    format!("{what}; {remedy}")
}

/// Returns the advice for the mistake, if there is any better than the help.
fn remedy(error: &Error, words: &[String]) -> Option<String> {
    let subcommand = subcommand(words);
    let runs = subcommand.filter(|word| matches!(*word, "run" | "elect"));
    let separated = words.iter().any(|word| word == "--");
    match error.kind() {
        ErrorKind::UnknownArgument => {
            if let Some(meant) = first(error, ContextKind::SuggestedArg) {
                return Some(format!("did you mean {meant}?"));
            }
            let (runs, wrong) = (runs?, first(error, ContextKind::InvalidArg)?);
            let mut before = words.iter().take_while(|word| *word != "--");
            if separated && before.any(|word| word == wrong) {
                return Some(format!("lockkeeper {runs} has no such option; see lockkeeper {runs} --help"));
            }
            if wrong.starts_with('-') {
                return Some(format!("options of CMD stand after --: lockkeeper {runs} NAME -- CMD {wrong}"));
            }
            Some(format!("write -- before CMD: lockkeeper {runs} NAME -- {wrong}"))
        }
        ErrorKind::MissingRequiredArgument if separated => {
            runs.map(|runs| format!("write both: lockkeeper {runs} NAME -- CMD"))
        }
        ErrorKind::MissingRequiredArgument => {
            runs.map(|runs| format!("write CMD after --: lockkeeper {runs} NAME -- CMD"))
        }
        ErrorKind::InvalidSubcommand => {
            let wrong = subcommand?;
            if wrong == "serve" {
                // In a build with the server it is a subcommand, and never wrong.
                let build = "cargo install --locked --path crates/cli --features full";
                return Some(format!(
                    "this lockkeeper was built without the feature `serve`; build it with {build}"
                ));
            }
            let guess = first(error, ContextKind::SuggestedSubcommand).map(str::to_owned);
            match guess.or_else(|| same_letters(wrong)) {
                Some(meant) => Some(format!("did you mean {meant}?")),
                None if separated => Some(format!("did you mean lockkeeper run {wrong} -- …?")),
                None => None,
            }
        }
        _ => None,
    }
}

/// Returns the subcommand that has the letters of `word` in another order: clap misses this in short words.
fn same_letters(word: &str) -> Option<String> {
    let sorted = |word: &str| {
        let mut letters: Vec<char> = word.chars().collect();
        letters.sort_unstable();
        letters
    };
    let all = Cli::command();
    let meant = all.get_subcommands().find(|known| sorted(known.get_name()) == sorted(word));
    meant.map(|known| known.get_name().to_owned())
}

/// Returns the first word of this kind that the error is about.
fn first(error: &Error, kind: ContextKind) -> Option<&str> {
    match error.get(kind)? {
        ContextValue::String(text) => Some(text),
        ContextValue::Strings(all) => all.first().map(String::as_str),
        _ => None,
    }
}

/// Returns the first word that is neither an option nor an option's value.
fn subcommand(words: &[String]) -> Option<&str> {
    let mut words = words.iter().map(String::as_str);
    while let Some(word) = words.next() {
        match word {
            "--store" | "--store-file" => drop(words.next()),
            option if option.starts_with('-') => {}
            word => return Some(word),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn explained(line: &str) -> String {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let error = Cli::try_parse_from(&words).expect_err(line);
        explain(&error, &words[1..])
    }

    #[test]
    fn a_forgotten_separator_is_pointed_out() {
        for (line, hint) in [
            ("run x ./backup.sh --fast", "write -- before CMD: lockkeeper run NAME -- ./backup.sh"),
            ("--store sqlite:a run -n x echo hi", "write -- before CMD: lockkeeper run NAME -- echo"),
            ("elect boss serve", "write -- before CMD: lockkeeper elect NAME -- serve"),
            ("run x --full ./backup.sh", "options of CMD stand after --: lockkeeper run NAME -- CMD --full"),
            ("run x --timeout 5 -- true", "lockkeeper run has no such option; see lockkeeper run --help"),
            ("run x", "write CMD after --: lockkeeper run NAME -- CMD"),
            ("run -n -- echo hi", "write both: lockkeeper run NAME -- CMD"),
            ("run x --", "write both: lockkeeper run NAME -- CMD"),
            ("nightly -- ./backup.sh", "did you mean lockkeeper run nightly -- …?"),
        ] {
            let explained = explained(&format!("lockkeeper {line}"));
            assert!(explained.ends_with(&format!("; {hint}")), "{line}: {explained}");
        }
    }

    #[cfg(not(feature = "serve"))]
    #[test]
    fn a_missing_server_is_named_as_such() {
        let explained = explained("lockkeeper serve --demo");
        assert!(explained.contains("without the feature `serve`"), "{explained}");
    }

    #[test]
    fn a_mistyped_word_is_guessed() {
        for (line, meant) in [
            ("run x --wiat 3 -- true", "--wait"),
            ("run x --skipok -- true", "--skip-ok"),
            ("--stroe=sqlite:a list", "--store"),
            ("list --jsn", "--json"),
            ("rnu x -- true", "run"),
            ("relaese lease", "release"),
        ] {
            let explained = explained(&format!("lockkeeper {line}"));
            assert!(explained.ends_with(&format!("; did you mean {meant}?")), "{line}: {explained}");
        }
    }

    #[test]
    fn without_a_guess_there_is_the_help() {
        for line in ["dance", "show", "list --nonsense"] {
            let explained = explained(&format!("lockkeeper {line}"));
            assert!(explained.ends_with("; see lockkeeper --help"), "{line}: {explained}");
        }
    }
}
