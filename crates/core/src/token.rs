//! Fencing tokens: what a resource compares to tell an old holder from a new one.

use std::{fmt, num::NonZeroU64, str::FromStr};

use crate::invalid::InvalidInput;

/// A store's number for one grant, below 2^53 so that every language can carry it exactly.
pub type GrantNumber = u64;

/// A fencing token: it grows with every grant of a resource, over all holders and processes.
///
/// A token is the store's grant number × 1,024 plus the step of a hand-on inside one process
/// (invariant I6), so it always fits a signed 64-bit column. It is text in JSON, because not
/// every reader of JSON keeps 64-bit numbers exact.
///
/// ```
/// use lockkeeper_core::Token;
///
/// let older = Token::new(7, 0);
/// let newer = Token::new(7, 1);
/// assert!(older < newer);
/// assert_eq!(older.to_string().parse::<Token>()?, older);
/// # Ok::<(), lockkeeper_core::InvalidInput>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(NonZeroU64);

impl Token {
    /// How many tokens one grant is good for: step 0 is the grant, the rest are hand-ons.
    pub const STEPS: u32 = 1024;
    /// Grant numbers stay below this.
    pub const NUMBER_LIMIT: GrantNumber = 1 << 53;

    /// The token of step `step` of grant `number`.
    ///
    /// # Panics
    /// If `number` is 0 or not below 2^53, or `step` is not below 1,024: a store broke its contract.
    pub fn new(number: GrantNumber, step: u32) -> Self {
        assert!(number < Self::NUMBER_LIMIT && step < Self::STEPS, "grant {number}, step {step}");
        let value = number * u64::from(Self::STEPS) + u64::from(step);
        assert!(number > 0, "grant numbers start at 1");
        Self(NonZeroU64::new(value).expect("a grant number is at least 1"))
    }

    /// A token received as a plain number, such as from a database column.
    pub fn from_i64(value: i64) -> Option<Self> {
        let value = u64::try_from(value).ok()?;
        if value < u64::from(Self::STEPS) {
            return None;
        }
        NonZeroU64::new(value).map(Self)
    }

    /// The token as a number for a signed 64-bit column.
    pub fn as_i64(self) -> i64 {
        i64::try_from(self.0.get()).expect("a token fits 63 bits by construction")
    }

    /// The store's grant number inside the token.
    pub fn number(self) -> GrantNumber {
        self.0.get() / u64::from(Self::STEPS)
    }

    /// The step inside the grant: 0 for the grant itself.
    pub fn step(self) -> u32 {
        (self.0.get() % u64::from(Self::STEPS)) as u32
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({}+{})", self.number(), self.step())
    }
}

impl FromStr for Token {
    type Err = InvalidInput;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse::<i64>().ok().and_then(Self::from_i64).ok_or_else(|| {
            InvalidInput::new(format!("{text:?} is not a token; pass on the number that `token()` printed"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_token_fits_a_signed_column() {
        let last = Token::new(Token::NUMBER_LIMIT - 1, Token::STEPS - 1);
        assert_eq!(last.as_i64(), i64::MAX);
        assert_eq!(Token::from_i64(i64::MAX), Some(last));
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "0", "-5", "1023", "9223372036854775808", "1e9", " 1024"] {
            assert!(text.parse::<Token>().is_err(), "{text:?}");
        }
    }
}
