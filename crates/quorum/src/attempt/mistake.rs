//! Mistakes that tests plant in an attempt: a checker that lets one of them pass proves nothing.

/// A rule that is not kept.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Mistake {
    /// Answers count in any order.
    LateAnswers,
    /// A hold that is gone at a member is claimed again without regard to the others.
    CreateAgainAlone,
    /// A member is claimed at again while a leave of the same id is under way to it.
    ClaimBeforeLeft,
    /// Numbers below the target are not raised, and count.
    NoWriteBack,
    /// A vote counts for a hold that was granted before the member voted.
    VotesForOldGrants,
    /// The target counts numbers of holds that are over.
    TargetOfLostHolds,
    /// The target is the number that a majority shows now, even if it was higher before.
    ShrinkingTarget,
    /// A reader counts every member with a number of at least the target.
    ReadersCountAnyNumber,
    /// A floor is that of the first answer of a member, not that of the one which counts.
    GrantTimeFloors,
}
