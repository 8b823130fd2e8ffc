//! Requests to a store that waits for replicas, and asks again what a failover must not take back.

use lockkeeper_core::{
    ContenderId, Name, StoreError, Token,
    store::{
        Admit, Admitted, Answer, BoxFuture, Claim, Count, CountAction, Counted, Renewed, Request, StoreTime,
        Verdict,
    },
};

use crate::asker::Asker;

/// A request, its name, and the requests that tell the same again.
pub const ANSWERS: [(&str, Ask, &[Ask]); 3] = [
    ("claim", claim, &[claim, poll, renew]),
    ("fence", admit, &[admit]),
    // In this order: what a commit confirmed is told without another one.
    ("latch", count_down, &[read_latch, count_down]),
];

/// A request, which says whether it was answered with what a failover must not take back.
pub type Ask = fn(Asker) -> BoxFuture<'static, Result<bool, StoreError>>;

/// Claims, and returns whether that was granted.
///
/// # Errors
/// If the store fails.
pub async fn is_granted(asker: &Asker, claim: Claim) -> Result<bool, StoreError> {
    let answers = asker.store.apply(&[Request::Claim(claim)]).await?;
    Ok(matches!(answers.each[..], [Answer::Claim(Verdict::Granted(_))]))
}

/// Does an operation on the asker's latch, and returns whether the latch is open.
///
/// # Errors
/// If the store fails.
///
/// # Panics
/// Never, because the name is a good one.
pub async fn count(asker: &Asker, seq: u64, action: CountAction) -> Result<bool, StoreError> {
    let (name, op) = (Name::new("latch").expect("a name"), ContenderId { keeper: asker.keeper, seq });
    let not_after = StoreTime(u64::MAX / 4);
    let answers = asker.store.count(&Count { name, op, not_after, action }).await?;
    Ok(matches!(answers.each[..], [Counted::State(state)] if state.remaining == 0))
}

/// Claims the lock `a`.
pub fn claim(asker: Asker) -> BoxFuture<'static, Result<bool, StoreError>> {
    Box::pin(async move { is_granted(&asker, asker.claim("a", 1)).await })
}

fn poll(asker: Asker) -> BoxFuture<'static, Result<bool, StoreError>> {
    Box::pin(async move { is_granted(&asker, Claim { again: true, ..asker.claim("a", 1) }).await })
}

fn renew(asker: Asker) -> BoxFuture<'static, Result<bool, StoreError>> {
    Box::pin(async move {
        let answers = asker.store.renew(&[asker.renewal("a", 1)]).await?;
        Ok(matches!(answers.each[..], [Renewed::Held(_)]))
    })
}

/// Shows a token to the fence.
///
/// # Panics
/// Never, because the name is a good one.
pub fn admit(asker: Asker) -> BoxFuture<'static, Result<bool, StoreError>> {
    Box::pin(async move {
        let (name, token) = (Name::new("fence").expect("a name"), Token::new(7, 0));
        Ok(asker.store.fence(&Admit { name, token, floor: token }).await? == Admitted::Yes)
    })
}

fn count_down(asker: Asker) -> BoxFuture<'static, Result<bool, StoreError>> {
    Box::pin(async move { count(&asker, 2, CountAction::Down(1)).await })
}

fn read_latch(asker: Asker) -> BoxFuture<'static, Result<bool, StoreError>> {
    Box::pin(async move { count(&asker, 3, CountAction::Read).await })
}
