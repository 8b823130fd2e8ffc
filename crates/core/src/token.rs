//! Fencing tokens, by which a resource tells an old holder from a new one.

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
/// use lockkeeper::Token;
///
/// let older = Token::new(7, 0);
/// let newer = Token::new(7, 1);
/// assert!(older < newer);
/// assert_eq!(older.to_string().parse::<Token>()?, older);
/// # Ok::<(), lockkeeper::error::InvalidInput>(())
/// ```
///
/// In SQL a token is a `BIGINT`. The conversion to `i64` loses nothing and keeps the order, so the database can compare
/// tokens by itself: one `UPDATE` is the whole fence. It changes no row if a newer holder has written before.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let keeper = lockkeeper::testing::keeper().await;
/// # let database = rusqlite::Connection::open_in_memory()?;
/// database.execute_batch(
///     "CREATE TABLE stock (item TEXT PRIMARY KEY, amount INTEGER NOT NULL, token BIGINT NOT NULL);
///      INSERT INTO stock VALUES ('42', 10, 0)",
/// )?;
/// let guard = keeper.mutex("stock/42").lock().await?;
/// let sell = "UPDATE stock SET amount = amount - 1, token = ?1 WHERE item = '42' AND token <= ?1";
/// assert_eq!(database.execute(sell, [i64::from(guard.token())])?, 1);
///
/// let written: i64 = database.query_row("SELECT token FROM stock", [], |row| row.get(0))?;
/// assert_eq!(lockkeeper::Token::try_from(written)?, guard.token());
///
/// let stale = lockkeeper::Token::new(1, 0);
/// assert_eq!(database.execute(sell, [i64::from(stale)])?, 0);
/// # Ok(()) }
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

    /// The token as a number for a signed 64-bit column, as `i64::from` gives it.
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

/// Lossless, and in the same order: every token is a positive number below 2^63.
impl From<Token> for i64 {
    fn from(token: Token) -> Self {
        token.as_i64()
    }
}

/// The way back, from a value of `i64::from`. Numbers below 1,024 are no tokens, so a column may begin at 0.
impl TryFrom<i64> for Token {
    type Error = InvalidInput;

    fn try_from(value: i64) -> Result<Self, Self::Error> {
        let token = u64::try_from(value).ok().filter(|value| *value >= u64::from(Self::STEPS));
        token.and_then(NonZeroU64::new).map(Self).ok_or_else(|| not_a_token(value))
    }
}

impl FromStr for Token {
    type Err = InvalidInput;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse::<i64>().ok().and_then(|value| value.try_into().ok()).ok_or_else(|| not_a_token(text))
    }
}

fn not_a_token(found: impl fmt::Debug) -> InvalidInput {
    InvalidInput::new(format!("{found:?} is not a token; pass on the number that `token()` printed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_token_fits_a_signed_column() {
        let last = Token::new(Token::NUMBER_LIMIT - 1, Token::STEPS - 1);
        assert_eq!(last.as_i64(), i64::MAX);
        assert_eq!(Token::try_from(i64::MAX), Ok(last));
    }

    #[test]
    fn the_way_to_a_column_and_back_keeps_tokens_and_their_order() {
        let numbers = [1, 2, 1 << 20, Token::NUMBER_LIMIT - 1];
        let tokens = numbers.map(|number| [0, 1, Token::STEPS - 1].map(|step| Token::new(number, step)));
        let columns = tokens.as_flattened().iter().map(|token| i64::from(*token));
        assert!(columns.clone().is_sorted_by(|a, b| a < b));
        let back: Result<Vec<Token>, _> = columns.map(Token::try_from).collect();
        assert_eq!(back.as_deref(), Ok(tokens.as_flattened()));
    }

    #[test]
    fn a_column_that_holds_no_token_is_told() {
        for value in [i64::MIN, -1, 0, 1023] {
            let error = Token::try_from(value).expect_err("no token");
            assert!(error.to_string().contains(&format!("{value} is not a token")), "{error}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "0", "-5", "1023", "9223372036854775808", "1e9", " 1024"] {
            assert!(text.parse::<Token>().is_err(), "{text:?}");
        }
    }
}
