//! Percent codes: `%` and two hexadecimal digits for a byte that must not stand as it is.

use std::fmt::Write as _;

/// Writes every byte of `text` that `keep` does not allow as a percent code. `keep` gets the byte's position, too.
///
/// `keep` must refuse `%` itself, and every byte beyond ASCII, or the text does not come back.
///
/// ```
/// use lockkeeper::support::percent;
/// let written = percent::encode("stock 42", |_, byte| byte.is_ascii_alphanumeric());
/// assert_eq!(written, "stock%2042");
/// assert_eq!(percent::decode(&written).as_deref(), Some("stock 42"));
/// ```
pub fn encode(text: &str, keep: impl Fn(usize, u8) -> bool) -> String {
    let mut encoded = String::with_capacity(text.len());
    for (position, byte) in text.bytes().enumerate() {
        if keep(position, byte) {
            encoded.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

/// Undoes percent codes; `None` if a `%` is not followed by two digits, or if the bytes are no UTF-8.
pub fn decode(encoded: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(encoded.len());
    let mut rest = encoded.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(if byte == b'%' {
            let digit = |digit: u8| char::from(digit).to_digit(16);
            u8::try_from(digit(rest.next()?)? * 16 + digit(rest.next()?)?).ok()?
        } else {
            byte
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_comes_back() {
        for text in ["", "stock/42", "%2F", "ü \u{10ffff}", "a\nb"] {
            assert_eq!(decode(&encode(text, |_, byte| byte.is_ascii_alphanumeric())).as_deref(), Some(text));
        }
    }

    #[test]
    fn broken_codes_are_refused() {
        for broken in ["%", "%4", "%zz", "%+1", "%FF"] {
            assert_eq!(decode(broken), None, "{broken}");
        }
    }
}
