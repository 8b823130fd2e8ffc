//! Text that others wrote, on its way to a terminal or a log: nothing in it is taken for an order.

/// Whether a terminal could take `c` for an order, or a reader be deceived by it: control characters, line separators, and
/// the marks that change direction or cannot be seen.
///
/// ```
/// use lockkeeper::support::terminal::is_unsafe;
/// assert!(is_unsafe('\u{1b}') && is_unsafe('\u{202e}') && !is_unsafe('é'));
/// ```
pub fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// `text` with everything unsafe written as `\u{…}`.
///
/// ```
/// use lockkeeper::support::terminal::plain;
/// assert_eq!(plain("a\u{1b}[2J é"), "a\\u{1b}[2J é");
/// ```
pub fn plain(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        if is_unsafe(c) {
            safe.extend(c.escape_unicode());
        } else {
            safe.push(c);
        }
    }
    safe
}

/// One line of JSON with the parts of its strings that JSON allows but a terminal should not get escaped as JSON does it,
/// so every reader gets the same text back.
///
/// ```
/// use lockkeeper::support::terminal::json;
/// assert_eq!(json("\"a\u{9b}31m\"".into()), "\"a\\u009b31m\"");
/// ```
pub fn json(line: String) -> String {
    // Most lines are plain ASCII, which needs no second look.
    if line.bytes().all(|byte| (0x20..0x7f).contains(&byte)) {
        return line;
    }
    let mut safe = String::with_capacity(line.len());
    let mut units = [0; 2];
    for c in line.chars() {
        if is_unsafe(c) {
            for unit in c.encode_utf16(&mut units) {
                safe.push_str(&format!("\\u{unit:04x}"));
            }
        } else {
            safe.push(c);
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &str = "a\u{1b}[2J\u{9b}31m\u{7f}\r\n\u{202e}b\u{e0041}é";

    #[test]
    fn hostile_text_is_harmless_and_readable() {
        assert_eq!(plain("stock/42 é 漢"), "stock/42 é 漢");
        let safe = plain(HOSTILE);
        assert!(!safe.chars().any(is_unsafe), "{safe}");
        assert!(safe.contains("\\u{1b}[2J") && safe.ends_with('é'), "{safe}");
    }

    #[test]
    fn ascii_lines_stay_as_they_are() {
        let line = "{\"name\":\"stock/42\"}";
        assert_eq!(json(line.into()), line);
    }
}
