//! The resource's side: reject a token that is older than one already seen.

use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering},
};

use super::handle::Handle;
use crate::{
    error::FenceError,
    store::{Admit, Admitted},
    telemetry,
    token::Token,
};

/// A fence kept in this process, for a server that owns its resource.
///
/// ```
/// use lockkeeper::{Fence, Token};
///
/// let fence = Fence::new();
/// assert!(fence.admit(Token::new(7, 0)).is_ok());
/// assert_eq!(fence.admit(Token::new(6, 0)), Err(Token::new(7, 0)));   // an older holder
/// ```
#[derive(Clone, Debug, Default)]
pub struct Fence {
    highest: Arc<AtomicI64>,
}

impl Fence {
    /// A fence that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// A fence that goes on from the highest floor seen before, such as from a file.
    pub fn starting_at(highest: Token) -> Self {
        Self { highest: Arc::new(AtomicI64::new(highest.as_i64())) }
    }

    /// The highest floor seen, to be kept with the data.
    pub fn highest(&self) -> Option<Token> {
        Token::try_from(self.highest.load(Ordering::Acquire)).ok()
    }

    /// Admits the token of an exclusive holder, or says which later one has been here.
    ///
    /// # Errors
    /// The highest floor seen, if `token` is below it.
    pub fn admit(&self, token: Token) -> Result<(), Token> {
        self.admit_shared(token, token)
    }

    /// Admits the token of a reader or permit with the floor of its grant: those who hold
    /// together do not reject each other.
    ///
    /// # Errors
    /// The highest floor seen, if `token` is below it.
    pub fn admit_shared(&self, token: Token, floor: Token) -> Result<(), Token> {
        let mut rejected = None;
        // One step decides and remembers, so two at a time cannot both pass an old check.
        let outcome = self.highest.fetch_update(Ordering::AcqRel, Ordering::Acquire, |highest| {
            rejected = Token::try_from(highest).ok().filter(|highest| token < *highest);
            rejected.is_none().then_some(highest.max(floor.min(token).as_i64()))
        });
        match (outcome, rejected) {
            (Err(_), Some(highest)) => Err(highest),
            _ => Ok(()),
        }
    }
}

/// A fence kept at the store; made by [`Keeper::fence`](crate::Keeper::fence).
///
/// A fence lasts as long as the place it is kept in: where the resource is a database, keep the
/// token with the data instead, in the same transaction:
///
/// ```sql
/// UPDATE stock SET amount = amount - 1, fence = $token WHERE id = 42 AND fence <= $token
/// ```
///
/// and treat zero changed rows as "no longer the holder".
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkeeper::Error> {
/// # let keeper = lockkeeper::testing::keeper().await;
/// let guard = keeper.mutex("stock/42").lock().await?;
/// keeper.fence("stock/42").admit(guard.token()).await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct StoredFence {
    pub(crate) handle: Handle,
}

impl StoredFence {
    /// Admits the token of an exclusive holder. Asking twice gives the same answer.
    ///
    /// # Cancel safety
    /// Dropping the future leaves it open whether the token was seen; that is harmless.
    ///
    /// # When the store is unreachable
    /// Fails after one request limit: treat the token as not admitted.
    ///
    /// # Errors
    /// [`FenceError::Stale`] if a later holder has been here.
    pub async fn admit(&self, token: Token) -> Result<(), FenceError> {
        self.admit_shared(token, token).await
    }

    /// Admits the token of a reader or permit with its [floor](crate::Guard::floor): those who
    /// hold together do not reject each other. Otherwise as [`admit`](Self::admit).
    ///
    /// # Errors
    /// [`FenceError::Stale`] if all who held with it have ended and a later one has been here.
    pub async fn admit_shared(&self, token: Token, floor: Token) -> Result<(), FenceError> {
        let at = || self.handle.at("admit");
        let name = self.handle.name().map_err(|why| FenceError::Invalid { at: at(), why })?;
        let engine = self.handle.alive.engine();
        let admit = Admit { name: name.clone(), token, floor: floor.min(token) };
        let admitted = engine.ask("admit", engine.store().fence(&admit)).await;
        match admitted.map_err(|error| error.at(at()))? {
            Admitted::Yes => Ok(()),
            Admitted::Stale { highest } => {
                telemetry::fence_rejected();
                Err(FenceError::Stale { at: at(), token, highest })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Timeline A7: permits 10 and 11 hold together; 11 writes first; 10 is still valid.
    #[test]
    fn i7_those_who_hold_together_do_not_reject_each_other() {
        let (ten, eleven, twelve) = (Token::new(10, 0), Token::new(11, 0), Token::new(12, 0));
        let fence = Fence::new();
        assert_eq!(fence.admit_shared(eleven, ten), Ok(()));
        assert_eq!(fence.admit_shared(ten, ten), Ok(()));
        assert_eq!(fence.admit(twelve), Ok(()));
        assert_eq!(fence.admit_shared(eleven, ten), Err(twelve));
        assert_eq!(Fence::starting_at(twelve).admit(eleven), Err(twelve));
    }
}
