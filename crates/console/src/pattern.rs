//! Patterns of names: `*` stands for any text, `?` for one letter.

/// A pattern of names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Pattern(String);

impl Pattern {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether every name matches.
    pub(crate) fn is_everything(&self) -> bool {
        !self.0.is_empty() && self.0.chars().all(|letter| letter == '*')
    }

    /// Whether some name that begins with `prefix` matches.
    pub(crate) fn may_begin_with(&self, prefix: &str) -> bool {
        let pattern: Vec<char> = self.0.chars().collect();
        // All places in the pattern that the letters so far may have led to. From each of them, some name goes on to
        // match.
        let mut places = vec![false; pattern.len() + 1];
        places[0] = true;
        let through_stars = |places: &mut Vec<bool>| {
            for (place, letter) in pattern.iter().enumerate() {
                if places[place] && *letter == '*' {
                    places[place + 1] = true;
                }
            }
        };
        through_stars(&mut places);
        for found in prefix.chars() {
            let mut next = vec![false; pattern.len() + 1];
            for (place, letter) in pattern.iter().enumerate().filter(|(place, _)| places[*place]) {
                match letter {
                    '*' => next[place] = true,
                    '?' => next[place + 1] = true,
                    letter if *letter == found => next[place + 1] = true,
                    _ => {}
                }
            }
            through_stars(&mut next);
            places = next;
        }
        places.contains(&true)
    }

    /// Whether `name` matches. The number of steps is at most the product of both lengths.
    pub(crate) fn matches(&self, name: &str) -> bool {
        if self.0 == "*" {
            return true;
        }
        let (mut pattern, mut rest) = (self.0.as_str(), name);
        // The pattern after the last star, and the rest of the name that it was tried with.
        let mut star: Option<(&str, &str)> = None;
        loop {
            let mut tail = pattern.chars();
            let mut name_tail = rest.chars();
            match (tail.next(), name_tail.next()) {
                (Some('*'), _) => {
                    star = Some((tail.as_str(), rest));
                    pattern = tail.as_str();
                    continue;
                }
                (None, None) => return true,
                (Some(letter), Some(found)) if letter == '?' || letter == found => {
                    (pattern, rest) = (tail.as_str(), name_tail.as_str());
                    continue;
                }
                _ => {}
            }
            // The last star takes one letter more.
            let Some((after, tried)) = star else { return false };
            let mut longer = tried.chars();
            if longer.next().is_none() {
                return false;
            }
            star = Some((after, longer.as_str()));
            (pattern, rest) = (after, longer.as_str());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_and_question_marks() {
        for (pattern, name, matches) in [
            ("*", "", true),
            ("*", "anything", true),
            ("nightly", "nightly", true),
            ("nightly", "nightly2", false),
            ("nightly/*", "nightly/", true),
            ("nightly/*", "nightly/a/b", true),
            ("nightly/*", "nightly", false),
            ("*/lock", "a/b/lock", true),
            ("*/lock", "a/b/locks", false),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXcYbZ", false),
            ("user/?/x", "user/é/x", true),
            ("user/?/x", "user//x", false),
            ("", "", true),
            ("", "a", false),
            ("**", "abc", true),
        ] {
            assert_eq!(Pattern::new(pattern).matches(name), matches, "{pattern:?} {name:?}");
        }
    }

    #[test]
    fn patterns_that_may_be_of_a_prefix() {
        for (pattern, prefix, may) in [
            ("*", "mine/", true),
            ("theirs/*", "mine/", false),
            ("mine/*", "mine/", true),
            ("m*", "mine/", true),
            ("mine/a", "mine/", true),
            ("mine", "mine/", false),
            ("min?/a*", "mine/", true),
            ("*/deploy", "mine/", true),
            ("*x", "mine/", true),
            ("theirs", "", true),
            ("", "mine/", false),
        ] {
            assert_eq!(Pattern::new(pattern).may_begin_with(prefix), may, "{pattern:?} {prefix:?}");
        }
        assert!(Pattern::new("**").is_everything() && !Pattern::new("*a").is_everything());
    }

    #[test]
    fn hostile_patterns_end_soon() {
        let pattern = Pattern::new("*a".repeat(256));
        assert!(!pattern.matches(&"a".repeat(255)));
        assert!(!Pattern::new(format!("{}b", "*a".repeat(200))).matches(&"a".repeat(512)));
    }
}
