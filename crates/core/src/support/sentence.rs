//! An error with its causes as one sentence, each said once.

use std::error::Error;

/// The text of `error`, followed by those of its causes that add something new.
///
/// ```
/// # use lockkeeper::{StoreError, error::StoreErrorKind, support::sentence};
/// let cause = std::io::Error::other("disk full");
/// let error = StoreError::new(StoreErrorKind::Conflict, "cannot write; free some space").with_source(cause);
/// assert_eq!(sentence::of(&error), "cannot write; free some space (disk full)");
/// ```
pub fn of(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut causes: Vec<String> = Vec::new();
    let mut cause = error.source();
    while let Some(error) = cause {
        // A wrapper often repeats the error inside, and many errors name their cause in their own text.
        let more = error.to_string();
        let known = |said: &String| said.contains(&more);
        if !more.is_empty() && !known(&text) && !causes.iter().any(known) {
            causes.push(more);
        }
        cause = error.source();
    }
    if !causes.is_empty() {
        text = format!("{text} ({})", causes.join(": "));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::fmt;

    use super::*;

    #[derive(Debug)]
    struct Layer(&'static str, Option<Box<Layer>>);

    impl fmt::Display for Layer {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for Layer {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.1.as_deref().map(|cause| cause as _)
        }
    }

    fn layers(texts: &[&'static str]) -> Layer {
        let below = (texts.len() > 1).then(|| Box::new(layers(&texts[1..])));
        Layer(texts[0], below)
    }

    #[test]
    fn each_cause_is_said_once() {
        for (texts, sentence) in [
            (&["broken"][..], "broken"),
            (&["broken", "cut"], "broken (cut)"),
            (&["broken", "cut", "dog"], "broken (cut: dog)"),
            (&["broken", "broken", "cut"], "broken (cut)"),
            (&["broken: cut; mend it", "cut", "dog"], "broken: cut; mend it (dog)"),
            (&["broken", "cut by dog", "dog"], "broken (cut by dog)"),
            (&["broken", ""], "broken"),
        ] {
            assert_eq!(of(&layers(texts)), sentence);
        }
    }
}
