//! Reads the replies of the scripts: see each script for the words of its reply.

use std::time::Duration;

use lockkeeper_core::{
    Name, StoreError, Token,
    store::{Claim, CountState, Counted, Grant, Left, Renew, Renewed, ResourceView, StoreTime, Verdict},
};
use redis::Value;

use super::{
    rarities,
    rows::{is_grant_number, view},
};
use crate::{calls::ScriptReply, trouble};

/// Reads a reply word by word.
pub(crate) struct Reader {
    words: String,
    /// The start of the next word.
    at: usize,
    more: Value,
}

impl Reader {
    pub(crate) fn new(reply: ScriptReply) -> Self {
        Self { words: reply.words, at: 0, more: reply.more }
    }

    fn word(&mut self) -> Result<&str, StoreError> {
        let rest = self.words.get(self.at..).filter(|rest| !rest.is_empty());
        let rest = rest.ok_or_else(|| trouble::nonsense("a missing word"))?;
        let word = rest.split(' ').next().unwrap_or(rest);
        self.at += word.len() + 1;
        Ok(word)
    }

    pub(crate) fn number(&mut self) -> Result<u64, StoreError> {
        self.word()?.parse().map_err(|_| trouble::nonsense("a number that is none"))
    }

    fn grant_number(&mut self) -> Result<u64, StoreError> {
        let number = self.number()?;
        if is_grant_number(number) { Ok(number) } else { Err(trouble::high_water_too_high()) }
    }

    fn length(&mut self) -> Result<Duration, StoreError> {
        self.number().map(Duration::from_micros)
    }

    pub(crate) fn time(&mut self) -> Result<StoreTime, StoreError> {
        self.number().map(StoreTime)
    }

    fn grant(&mut self) -> Result<Grant, StoreError> {
        Ok(Grant { number: self.grant_number()?, floor: self.grant_number()?, remaining: self.length()? })
    }

    pub(crate) fn verdict(&mut self, claim: &Claim, now: StoreTime) -> Result<Verdict, StoreError> {
        Ok(match self.number()? {
            kind @ (0 | 9) => {
                let number = if kind == 0 { now.0 } else { self.grant_number()? };
                Verdict::Granted(Grant { number, floor: number, remaining: claim.lease })
            }
            1 => Verdict::Granted(self.grant()?),
            2 => Verdict::busy(u32::try_from(self.number()?).unwrap_or(u32::MAX), self.length()?),
            3 => Verdict::Stale,
            4 => {
                let in_use = self.word()?.parse();
                Verdict::mismatch(in_use.map_err(|_| trouble::nonsense("a capacity"))?)
            }
            8 => Verdict::Refused(trouble::foreign()),
            _ => return Err(trouble::nonsense("a verdict")),
        })
    }

    pub(crate) fn left(&mut self) -> Result<Left, StoreError> {
        match self.number()? {
            5 => Ok(Left::Released),
            6 => Ok(Left::LeftQueue),
            7 => Ok(Left::NotThere),
            _ => Err(trouble::nonsense("an answer to a leave")),
        }
    }

    pub(crate) fn renewed(&mut self, renew: &Renew) -> Result<Renewed, StoreError> {
        match self.number()? {
            0 => {
                let number = self.grant_number()?;
                Ok(Renewed::Held(Grant { number, floor: number, remaining: renew.lease }))
            }
            1 => self.grant().map(Renewed::Held),
            2 => Ok(Renewed::Gone),
            3 => Ok(Renewed::Evicted(rarities::reason(self.word()?))),
            _ => Err(trouble::nonsense("an answer to a renewal")),
        }
    }

    pub(crate) fn counted(&mut self) -> Result<Counted, StoreError> {
        let kind = self.number()?;
        if matches!(kind, 2 | 4) {
            return Ok(if kind == 2 { Counted::Missing } else { Counted::Stale });
        }
        let state = CountState {
            remaining: self.number()?,
            initial: self.number()?,
            opened: self.number()?,
            born: self.number()?,
        };
        Ok(if kind == 3 { Counted::Exists(state) } else { Counted::State(state) })
    }

    /// The latch whose key was read, if there is one.
    pub(crate) fn latch(&mut self) -> Result<Option<CountState>, StoreError> {
        let Value::Array(elements) = std::mem::replace(&mut self.more, Value::Nil) else {
            return Err(trouble::nonsense("missing rows"));
        };
        // A key that holds something else is no latch.
        Ok(elements.into_iter().next().and_then(text).and_then(|text| state(&text)))
    }

    pub(crate) fn token(&mut self) -> Result<Token, StoreError> {
        self.word()?.parse().map_err(|_| trouble::nonsense("a token"))
    }

    /// The resource whose key was read, without the holds and positions that have ended.
    pub(crate) fn view(&mut self, name: &Name) -> Result<Option<ResourceView>, StoreError> {
        let now = self.time()?;
        let Value::Array(elements) = std::mem::replace(&mut self.more, Value::Nil) else {
            return Err(trouble::nonsense("missing rows"));
        };
        // A key that holds something else is no resource, and claims of it are refused.
        Ok(view(name, now, elements.into_iter().filter_map(text)))
    }
}

/// A latch as its key has it: see `count.lua`.
fn state(text: &str) -> Option<CountState> {
    let mut numbers = text.split(' ').map(|number| number.parse().ok());
    let mut next = || numbers.next().flatten();
    let state = CountState { remaining: next()?, initial: next()?, opened: next()?, born: next()? };
    numbers.next().is_none().then_some(state)
}

fn text(element: Value) -> Option<String> {
    match element {
        Value::BulkString(text) => String::from_utf8(text).ok(),
        _ => None,
    }
}
