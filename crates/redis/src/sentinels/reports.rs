//! The reports of the sentinels, and the master that counts. Plain state: nothing here is sent or waited for.
//!
//! The newest configuration counts that more than half of the sentinels of the URL name, and never one that is older
//! than what counted before: a sentinel may lag behind, or have been restarted with an old file.

use lockkeeper_core::StoreError;

use crate::{address::Address, trouble};

/// The report of one sentinel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Report {
    /// Each failover has an epoch, larger than those before it.
    pub(super) epoch: u64,
    pub(super) master: Address,
}

/// The last answer of a sentinel.
#[derive(Clone, Default)]
struct LastAnswer {
    /// The round of questions that it belongs to.
    round: u64,
    /// Its report, or the error of asking it.
    answer: Option<Result<Report, StoreError>>,
}

impl LastAnswer {
    fn report(&self) -> Option<&Report> {
        self.answer.as_ref()?.as_ref().ok()
    }
}

/// The last answers of all sentinels.
#[derive(Default)]
pub(super) struct Reports {
    answers: Vec<LastAnswer>,
    /// The epoch that counts. No older one ever will.
    epoch: u64,
}

impl Reports {
    pub(super) fn new(sentinels: usize) -> Self {
        Self { answers: vec![LastAnswer::default(); sentinels], epoch: 0 }
    }

    /// Returns the report of more than half of all sentinels, of those that answered in this round or later.
    fn agreed(&self, round: u64) -> Option<&Report> {
        let mut reports = self.fresh(round);
        let agree = |report: &&Report| {
            2 * self.fresh(round).filter(|other| other == report).count() > self.answers.len()
        };
        reports.find(agree).filter(|report| report.epoch >= self.epoch)
    }

    fn fresh(&self, round: u64) -> impl Iterator<Item = &Report> {
        self.answers.iter().filter(move |last| last.round >= round).filter_map(LastAnswer::report)
    }

    /// Whether the sentinels agree in this round, or all have answered.
    pub(super) fn are_enough(&self, round: u64) -> bool {
        self.agreed(round).is_some() || self.answers.iter().all(|last| last.round >= round)
    }

    /// Whether the sentinels that can be asked differ from each other, or from the report that counts.
    pub(super) fn disagree(&self) -> bool {
        let mut reports = self.fresh(0);
        let first = reports.next();
        reports.any(|report| Some(report) != first) || self.fresh(0).any(|report| report.epoch != self.epoch)
    }

    /// The master that most sentinels name, which counts from now on.
    pub(super) fn agree(&mut self) -> Option<Address> {
        self.count(0)
    }

    fn count(&mut self, round: u64) -> Option<Address> {
        let Report { epoch, master } = self.agreed(round)?.clone();
        self.epoch = epoch;
        Some(master)
    }

    /// The master that this round came to: the one that most name; else, since few sentinels can be asked, the newest
    /// that any of them names.
    pub(super) fn choose(&mut self, round: u64) -> Result<Address, StoreError> {
        if let Some(master) = self.count(round) {
            return Ok(master);
        }
        if let Some(newest) = self.fresh(round).max_by_key(|report| report.epoch) {
            if newest.epoch < self.epoch {
                return Err(trouble::outdated_sentinels(newest.epoch, self.epoch));
            }
            return Ok(newest.master.clone());
        }
        let error = self.answers.iter().find_map(|last| last.answer.as_ref()?.as_ref().err().cloned());
        Err(error.unwrap_or_else(|| trouble::too_late("the sentinels")).not_applied())
    }

    /// Takes in an answer; true if it tells of a newer epoch than counts, for the first time.
    pub(super) fn take_in(
        &mut self,
        sentinel: usize,
        round: u64,
        answer: Result<Report, StoreError>,
    ) -> bool {
        let last = &mut self.answers[sentinel];
        let is_news = |report: &Report| report.epoch > self.epoch && last.report() != Some(report);
        let is_news = answer.as_ref().is_ok_and(is_news);
        *last = LastAnswer { round, answer: Some(answer) };
        is_news
    }

    /// Forgets all answers, but not the epoch that counts.
    pub(super) fn forget(&mut self) {
        self.answers.fill(LastAnswer::default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(epoch: u64, host: &str) -> Report {
        Report { epoch, master: Address::Tcp(host.into(), 6379) }
    }

    fn reports(epoch: u64, reports: &[Option<Report>]) -> Reports {
        let last = |report: &Option<Report>| LastAnswer { round: 1, answer: report.clone().map(Ok) };
        Reports { answers: reports.iter().map(last).collect(), epoch }
    }

    #[test]
    fn what_more_than_half_say_counts() {
        let (old, new) = (report(4, "old"), report(5, "new"));
        let agreed = |epoch, given: &[Option<Report>]| reports(epoch, given).agreed(0).cloned();
        let one_ahead = [Some(new.clone()), Some(old.clone()), Some(old.clone())];
        assert_eq!(agreed(4, &one_ahead), Some(old.clone()), "one is ahead of the others");
        let one_behind = [Some(old.clone()), Some(new.clone()), Some(new.clone())];
        assert_eq!(agreed(4, &one_behind), Some(new.clone()), "one lags behind");
        assert_eq!(agreed(4, &[Some(new.clone()), Some(old), None]), None, "no two agree");
        assert_eq!(agreed(4, &[Some(new.clone()), None, None]), None, "one of three");
        assert_eq!(agreed(0, &[Some(new.clone())]), Some(new), "the only one");
    }

    #[test]
    fn an_older_epoch_than_was_seen_never_counts() {
        let old = report(4, "old");
        let all_old = [Some(old.clone()), Some(old.clone()), Some(old)];
        assert_eq!(reports(5, &all_old).agreed(0), None, "they were restarted with old files");
    }

    #[test]
    fn only_answers_of_a_round_count_for_it() {
        let new = report(5, "new");
        let mut reports = reports(4, &[Some(new.clone()), Some(new.clone()), Some(new.clone())]);
        reports.answers[0].round = 2;
        assert_eq!(reports.agreed(2), None, "one has answered so far");
        reports.answers[2].round = 2;
        assert_eq!(reports.agreed(2), Some(&new));
    }
}
