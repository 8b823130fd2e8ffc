//! Fences: the highest token that each resource's side check has seen, as one number.

use lockkeeper_core::{
    Token,
    store::{Admit, Admitted},
};

use crate::BadRow;

/// The outcome of showing a token to a fence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fenced {
    /// The answer.
    pub answer: Admitted,
    /// The row of the fence, if it has to be written.
    pub highest: Option<i64>,
}

/// Checks a token against the row of its fence, if there is one; 0 means that no token was seen. The highest floor seen
/// never falls (invariant I7).
///
/// # Errors
/// If the row has a number that is no token.
pub fn admit(highest: Option<i64>, admit: &Admit) -> Result<Fenced, BadRow> {
    let seen = highest.filter(|number| *number != 0).map(Token::try_from).transpose();
    let seen = seen.map_err(|_| BadRow::at("highest"))?;
    Ok(match seen {
        Some(highest) if admit.token < highest => {
            Fenced { answer: Admitted::Stale { highest }, highest: None }
        }
        Some(highest) if highest >= admit.floor => Fenced { answer: Admitted::Yes, highest: None },
        _ => Fenced { answer: Admitted::Yes, highest: Some(admit.floor.as_i64()) },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::name;

    #[test]
    fn the_highest_floor_never_falls() {
        let show = |highest, token, floor| {
            let order =
                Admit { name: name("stock"), token: Token::new(token, 0), floor: Token::new(floor, 0) };
            admit(highest, &order).expect("a good row")
        };
        let number = |number| Some(Token::new(number, 0).as_i64());
        let yes = |highest| Fenced { answer: Admitted::Yes, highest };
        assert_eq!(show(None, 7, 5), yes(number(5)));
        assert_eq!(show(Some(0), 7, 5), yes(number(5)));
        assert_eq!(show(number(5), 5, 5), yes(None));
        assert_eq!(show(number(5), 6, 4), yes(None));
        assert_eq!(show(number(5), 9, 9), yes(number(9)));
        let stale = Admitted::Stale { highest: Token::new(5, 0) };
        assert_eq!(show(number(5), 4, 4), Fenced { answer: stale, highest: None });
        let order = Admit { name: name("stock"), token: Token::new(7, 0), floor: Token::new(7, 0) };
        assert_eq!(admit(Some(-3), &order), Err(BadRow { column: "highest" }));
    }
}
