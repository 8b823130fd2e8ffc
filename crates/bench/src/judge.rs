//! From figures to a verdict: medians, their intervals, limits.
//!
//! A rate is judged by the 90 % interval of the median of enough rounds, and only if the limit is
//! not inside of it. Counts (CPU time, bytes, shares) are judged as they are.

use std::fmt;

/// The median of several rounds and its 90 % interval.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Median {
    pub(crate) value: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

impl Median {
    /// The median of at least one figure. The interval lies between two of the figures. They are chosen so that the
    /// true median is outside with a probability of at most 10 %, for every distribution. With fewer than five figures
    /// there is no such pair, and the interval spans them all.
    pub(crate) fn of(figures: impl IntoIterator<Item = f64>) -> Self {
        let mut figures: Vec<f64> = figures.into_iter().collect();
        figures.sort_by(f64::total_cmp);
        let n = figures.len();
        let value = (figures[(n - 1) / 2] + figures[n / 2]) / 2.0;
        let cut = outer_figures(n);
        Self { value, low: figures[cut], high: figures[n - 1 - cut] }
    }
}

/// How many figures at each end may be left out so that the probability that fewer than that many
/// of `n` lie on one side of the true median, which is binomial, is at most 5 %.
fn outer_figures(n: usize) -> usize {
    let mut probability = 0.5f64.powi(i32::try_from(n).unwrap_or(i32::MAX));
    let mut sum = probability;
    let mut cut = 0;
    while sum <= 0.05 && cut < n / 2 {
        cut += 1;
        probability *= (n + 1 - cut) as f64 / cut as f64;
        sum += probability;
    }
    cut.saturating_sub(1)
}

/// Jain's fairness index of the tasks' shares: 1 if all got the same, 1/n if one got all.
pub(crate) fn jain(shares: &[u64]) -> f64 {
    let sum: f64 = shares.iter().map(|share| *share as f64).sum();
    let squares: f64 = shares.iter().map(|share| (*share as f64).powi(2)).sum();
    sum * sum / (shares.len() as f64 * squares)
}

/// The limit that a figure is held to.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Limit {
    AtLeast(f64),
    AtMost(f64),
    Below(f64),
}

impl Limit {
    fn allows(self, value: f64) -> bool {
        match self {
            Self::AtLeast(limit) => value >= limit,
            Self::AtMost(limit) => value <= limit,
            Self::Below(limit) => value < limit,
        }
    }

    /// Judges a count.
    pub(crate) fn judge(self, value: f64) -> Verdict {
        if self.allows(value) { Verdict::Met } else { Verdict::Missed }
    }

    /// Judges a rate, or a ratio of rates: both ends of its interval have to agree.
    pub(crate) fn judge_rate(self, median: &Median) -> Verdict {
        let (low, high) = (self.judge(median.low), self.judge(median.high));
        if low == high { low } else { Verdict::Inconclusive }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(limit) => write!(f, "≥ {limit}"),
            Self::AtMost(limit) => write!(f, "≤ {limit}"),
            Self::Below(limit) => write!(f, "< {limit}"),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    Met,
    Missed,
    /// The rounds differ too much; measure again.
    Inconclusive,
    /// Too little was asked for.
    TooShort,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Met => "met",
            Self::Missed => "missed",
            Self::Inconclusive => "inconclusive",
            Self::TooShort => "too short to judge",
        })
    }
}

/// Returns 1 if a goal was missed, else 2 if one is open, else 0.
pub(crate) fn exit_code(verdicts: impl IntoIterator<Item = Verdict>) -> u8 {
    let code = |verdict| match verdict {
        Verdict::Met => 0,
        Verdict::Inconclusive | Verdict::TooShort => 2,
        Verdict::Missed => 1,
    };
    let codes: Vec<u8> = verdicts.into_iter().map(code).collect();
    if codes.contains(&1) { 1 } else { codes.into_iter().max().unwrap_or(0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one_to(n: u32) -> impl Iterator<Item = f64> {
        (1..=n).rev().map(f64::from)
    }

    #[test]
    fn fifteen_figures() {
        // P(at most 3 of 15 below the median) = 1.8 %, at most 4: 5.9 %. So the 4th and the 12th.
        assert_eq!(Median::of(one_to(15)), Median { value: 8.0, low: 4.0, high: 12.0 });
    }

    #[test]
    fn the_interval_is_that_of_the_tables() {
        // Ranks of the 90 % interval of a median in statistical tables.
        for (n, rank) in [(5, 1), (8, 2), (11, 3), (20, 6), (30, 11), (50, 19), (100, 42)] {
            let median = Median::of(one_to(n));
            assert_eq!((median.low, median.high), (f64::from(rank), f64::from(n + 1 - rank)), "{n}");
        }
    }

    #[test]
    fn few_figures_span_everything() {
        assert_eq!(Median::of([7.0]), Median { value: 7.0, low: 7.0, high: 7.0 });
        assert_eq!(Median::of(one_to(4)), Median { value: 2.5, low: 1.0, high: 4.0 });
    }

    #[test]
    fn a_rate_is_judged_by_its_whole_interval() {
        let median = |low, high| Median { value: (low + high) / 2.0, low, high };
        let limit = Limit::AtLeast(0.25);
        assert_eq!(limit.judge_rate(&median(0.25, 0.9)), Verdict::Met);
        assert_eq!(limit.judge_rate(&median(0.1, 0.24)), Verdict::Missed);
        assert_eq!(limit.judge_rate(&median(0.24, 0.3)), Verdict::Inconclusive);
        assert_eq!(Limit::AtMost(0.25).judge_rate(&median(0.24, 0.3)), Verdict::Inconclusive);
        assert_eq!(limit.judge_rate(&median(f64::NAN, f64::NAN)), Verdict::Missed);
    }

    #[test]
    fn limits() {
        assert_eq!(Limit::AtLeast(1.0).judge(1.0), Verdict::Met);
        assert_eq!(Limit::AtMost(1.0).judge(1.0), Verdict::Met);
        assert_eq!(Limit::Below(1.0).judge(1.0), Verdict::Missed);
        assert_eq!(Limit::AtMost(1.0).judge(f64::NAN), Verdict::Missed);
    }

    #[test]
    fn jain_index() {
        assert_eq!(jain(&[5, 5, 5, 5]), 1.0);
        assert_eq!(jain(&[8, 0, 0, 0]), 0.25);
    }

    #[test]
    fn a_miss_weighs_more_than_doubt() {
        assert_eq!(exit_code([]), 0);
        assert_eq!(exit_code([Verdict::Met]), 0);
        assert_eq!(exit_code([Verdict::Met, Verdict::Inconclusive]), 2);
        assert_eq!(exit_code([Verdict::TooShort, Verdict::Missed, Verdict::Inconclusive]), 1);
    }
}
