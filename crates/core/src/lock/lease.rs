//! A lease as text, which one process prints and another adopts, renews or releases.

use std::{fmt, str::FromStr, sync::Arc, time::Duration};

use crate::{
    clock::BootTime,
    deadline,
    engine::{
        Engine,
        hold::{Grantee, Hold},
        renewal::{self, DetachedLease, DetachedRenewal},
        terms::Terms,
    },
    error::{At, InvalidInput, LeaseError},
    id::ContenderId,
    name::Name,
    share::{Capacity, Units},
    store::{Attachment, Kind, Leave, StoreTime},
    support::percent,
    token::{GrantNumber, Token},
};

/// A detached lease: opaque text without blanks that carries everything needed to go on with it.
///
/// Anybody who has the text can renew and release the lock, so treat it like a key.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkeeper::Error> {
/// # let keeper = lockkeeper::testing::keeper().await;
/// let guard = keeper.mutex("deploy").detachable().lock().await?;
/// let text = guard.into_lease().await?.to_string();
/// // … in another process:
/// let guard = keeper.adopt(&text.parse()?).await?;
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Lease {
    pub(crate) name: Name,
    pub(crate) contender: ContenderId,
    pub(crate) number: GrantNumber,
    pub(crate) floor: GrantNumber,
    pub(crate) step: u32,
    pub(crate) units: Units,
    pub(crate) capacity: Capacity,
    pub(crate) kind: Kind,
    pub(crate) lease: Duration,
    pub(crate) renewed: bool,
    /// The rest of `max_hold` at the moment it was detached: the adopter counts on from there.
    pub(crate) max_hold: Option<Duration>,
    pub(crate) min_hold: Duration,
    /// How long the store may keep it from the moment at which it was detached, if that is longer than a lease: it was
    /// extended.
    pub(crate) extended: Option<Duration>,
    /// The time until which a late copy of its claim may arrive at the store: a release leaves a tombstone till then.
    pub(crate) tombstone_until: Option<StoreTime>,
}

/// The first field; another layout gets another word.
const VERSION: &str = "lk1";

/// How far the ideas that two keepers have of the store's clock may be apart.
const CLOCKS_APART: Duration = Duration::from_secs(60);

impl Lease {
    pub(crate) fn of(hold: &Hold, units: Units, step: u32, now: BootTime) -> Self {
        let terms = &hold.terms;
        Self {
            name: hold.name.clone(),
            contender: hold.contender,
            number: hold.number,
            floor: hold.floor,
            step,
            units,
            capacity: terms.capacity,
            kind: terms.kind,
            lease: terms.lease,
            renewed: terms.renewed,
            max_hold: terms.max_hold.map(|most| most.saturating_sub(now.since(hold.granted))),
            min_hold: terms.min_hold,
            extended: Some(hold.asked_until().since(now)).filter(|left| *left > terms.claim_lease()),
            tombstone_until: hold.tombstone_until,
        }
    }

    /// Returns the name of the held lock.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// The fencing token.
    pub fn token(&self) -> Token {
        Token::new(self.number, self.step)
    }

    /// The smallest token that still held when this was granted: the token itself if it is exclusive.
    pub fn floor(&self) -> Token {
        if self.units == Units::All { self.token() } else { Token::new(self.floor, 0) }
    }

    /// The request that gives it back. Even if its text asks for more, the store keeps nothing for longer than it would
    /// for a lease that it granted.
    pub(crate) fn leave(&self, engine: &Engine) -> Leave {
        let latest = engine.latest_copy(&self.name).after(CLOCKS_APART);
        Leave {
            name: self.name.clone(),
            contender: self.contender,
            tombstone_until: self.tombstone_until.map(|until| until.min(latest)),
            hold_at_least: self.min_hold.min(engine.store().capability().max_lease),
        }
    }

    /// How long the store may keep it from now on, if nobody renews it.
    pub(crate) fn longest(&self) -> Duration {
        self.lease.max(self.min_hold).max(self.extended.unwrap_or_default())
    }

    /// The facts that a keeper needs to go on with it; `slot` is that keeper's number for it.
    pub(crate) fn detached(&self, slot: u64, terms: Arc<Terms>) -> DetachedLease {
        let grantee = Grantee {
            name: self.name.clone(),
            contender: self.contender,
            slot,
            terms,
            tombstone_until: self.tombstone_until,
        };
        DetachedLease { grantee, token: self.token(), floor: self.floor }
    }

    pub(crate) fn terms(&self) -> Arc<Terms> {
        let mut terms = Terms::new(self.kind, self.units, self.capacity);
        terms.lease = self.lease;
        terms.renewed = self.renewed;
        terms.max_hold = self.max_hold;
        terms.min_hold = self.min_hold;
        terms.attachment = Attachment::Detachable;
        // Its grant was made elsewhere: it is never handed on here.
        terms.fifo = true;
        Arc::new(terms)
    }

    fn parse(text: &str) -> Option<Self> {
        let mut fields = text.split(':');
        let mut next = || fields.next();
        if next()? != VERSION {
            return None;
        }
        let contender = next()?.parse().ok()?;
        let (number, step) = next()?.split_once('.')?;
        let (number, step): (GrantNumber, u32) = (number.parse().ok()?, step.parse().ok()?);
        let floor: GrantNumber = next()?.parse().ok()?;
        let sane = |number| (1..Token::NUMBER_LIMIT).contains(&number);
        if !sane(number) || !sane(floor) || step >= Token::STEPS {
            return None;
        }
        let (units, capacity) = next()?.split_once('/')?;
        let (units, capacity): (Units, Capacity) = (units.parse().ok()?, capacity.parse().ok()?);
        let kind = Kind::from_word(next()?)?;
        let lease = Duration::from_millis(next()?.parse().ok()?);
        let mut settings = next()?.split(',');
        let renewed = match settings.next()? {
            "renewed" => true,
            "fixed" => false,
            _ => return None,
        };
        let (mut max_hold, mut min_hold, mut extended, mut tombstone_until) =
            (None, Duration::ZERO, None, None);
        for setting in settings {
            let (what, number) = setting.split_once('=')?;
            let number = number.parse().ok()?;
            match what {
                "max" => max_hold = Some(Duration::from_millis(number)),
                "min" => min_hold = Duration::from_millis(number),
                "extended" => extended = Some(Duration::from_millis(number)),
                "late" => tombstone_until = Some(StoreTime(number)),
                _ => return None,
            }
        }
        let name = Name::new(percent::decode(next()?)?).ok()?;
        next().is_none().then_some(Self {
            name,
            contender,
            number,
            floor,
            step,
            units,
            capacity,
            kind,
            lease,
            renewed,
            max_hold,
            min_hold,
            extended,
            tombstone_until,
        })
    }
}

/// Returns the facts that `engine` needs to go on with `lease`, if its store keeps a lease of that length.
pub(crate) fn checked(
    engine: &Engine,
    lease: &Lease,
    operation: &'static str,
) -> Result<DetachedLease, LeaseError> {
    let terms = lease.terms();
    // The rest was checked when it was granted, and of max_hold only a part is left.
    terms.check_lease(engine.store().as_ref()).map_err(|why| {
        let at = At::resource(engine.store().url(), &lease.name, operation);
        LeaseError::Invalid { at, why }
    })?;
    Ok(lease.detached(engine.next_id().seq, terms))
}

/// Renews `lease` once; see [`Keeper::renew_lease`](crate::Keeper::renew_lease).
pub(crate) async fn renew(engine: &Arc<Engine>, lease: &Lease) -> Result<Duration, LeaseError> {
    let detached = checked(engine, lease, "renew")?;
    let DetachedRenewal { sent, remaining } = renewal::renew_detached(engine, &detached, "renew").await?;
    Ok(deadline::from_answer(sent, remaining).since(engine.clock().now()))
}

/// Letters, digits and a few signs stay readable.
fn encode(name: &str) -> String {
    percent::encode(name, |_, byte| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte))
}

impl fmt::Display for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut settings = String::from(if self.renewed { "renewed" } else { "fixed" });
        if let Some(most) = self.max_hold {
            settings.push_str(&format!(",max={}", most.as_millis()));
        }
        if !self.min_hold.is_zero() {
            settings.push_str(&format!(",min={}", self.min_hold.as_millis()));
        }
        if let Some(left) = self.extended {
            settings.push_str(&format!(",extended={}", left.as_millis()));
        }
        if let Some(until) = self.tombstone_until {
            settings.push_str(&format!(",late={}", until.0));
        }
        write!(
            f,
            "{VERSION}:{}:{}.{}:{}:{}/{}:{}:{}:{settings}:{}",
            self.contender,
            self.number,
            self.step,
            self.floor,
            self.units,
            self.capacity,
            self.kind.word(),
            self.lease.as_millis(),
            encode(self.name.as_str()),
        )
    }
}

impl fmt::Debug for Lease {
    /// The contender id is the key to the lock, so it stays out of logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("name", &self.name)
            .field("token", &self.token())
            .finish_non_exhaustive()
    }
}

impl FromStr for Lease {
    type Err = InvalidInput;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text.trim())
            .ok_or_else(|| InvalidInput::new("this is not a lease; pass on the text that into_lease() gave"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::KeeperId;

    #[test]
    fn text_carries_everything_without_blanks() {
        let lease = Lease {
            name: Name::new("a b:c%/ü").expect("valid"),
            contender: ContenderId { keeper: KeeperId::random(), seq: 7 },
            number: 12,
            floor: 9,
            step: 3,
            units: Units::count(2).expect("valid"),
            capacity: Capacity::count(4).expect("valid"),
            kind: Kind::Semaphore,
            lease: Duration::from_millis(1500),
            renewed: false,
            max_hold: Some(Duration::from_millis(9000)),
            min_hold: Duration::from_millis(100),
            extended: Some(Duration::from_millis(7000)),
            tombstone_until: Some(StoreTime(1_234_567)),
        };
        let text = lease.to_string();
        assert!(!text.contains(char::is_whitespace) && text.is_ascii(), "{text}");
        assert_eq!(text.parse::<Lease>().expect("parses"), lease);
        assert!(!format!("{lease:?}").contains(&lease.contender.to_string()));
    }

    /// Texts come from strangers.
    #[tokio::test(start_paused = true)]
    async fn a_leave_keeps_nothing_for_longer_than_a_real_lease() {
        let engine = crate::engine::tests::engine().await;
        let text = "lk1:00000000000000000000000000000001-1:5.0:5:all/all:mutex:30000";
        let lease = |settings: &str| format!("{text}:renewed{settings}:x").parse::<Lease>().expect("a lease");
        let leave = lease(",min=9460800000000,late=9223372036854775807").leave(&engine);
        assert!(leave.hold_at_least <= engine.store().capability().max_lease);
        let ahead = leave.tombstone_until.expect("given").since(engine.latest_copy(&leave.name));
        assert!(ahead <= CLOCKS_APART, "{ahead:?}");
        let leave = lease(",min=100,late=7").leave(&engine);
        assert_eq!(leave.hold_at_least, Duration::from_millis(100));
        assert_eq!(leave.tombstone_until, Some(StoreTime(7)));
    }

    #[test]
    fn broken_text_is_refused() {
        let good = "lk1:00000000000000000000000000000001-1:5.0:5:all/all:mutex:30000:renewed:x";
        assert!(good.parse::<Lease>().is_ok());
        for end in 0..good.len() {
            assert!(good[..end].parse::<Lease>().is_err(), "{}", &good[..end]);
        }
        for bad in [
            good.replace("lk1", "lk2"),
            good.replace("5.0", "5.1024"),
            good.replace(":x", ":%zz"),
            good.replace("renewed", "renewed,max=x"),
        ] {
            assert!(bad.parse::<Lease>().is_err(), "{bad}");
        }
    }
}
