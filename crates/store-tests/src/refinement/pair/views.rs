//! Compares the parts that a store shows without being changed: listings, views, and the notices that it pushed.

use std::time::Duration;

use lockkeeper_core::{
    store::{ListQuery, ResourceView},
    support,
};

use super::{super::compare::Compared, Pair, at, store_failed};

impl Pair<'_> {
    /// Walks through the pages of the listing.
    pub(super) async fn list(&mut self, limit: usize) -> Compared {
        let prefix = self.names[0].as_str().trim_end_matches('0').to_owned();
        let mut query = ListQuery { prefix: prefix.clone(), after: None, limit };
        let before = self.now().await?;
        let mut listed = Vec::new();
        loop {
            let page = self.store().list(&query).await.map_err(|error| store_failed(&error))?;
            if page.resources.len() > limit {
                return Err(format!("a page of {} when {limit} were asked for", page.resources.len()));
            }
            listed.extend(page.resources);
            let Some(next) = page.next else { break };
            if query.after.as_ref().is_some_and(|after| next <= *after) {
                return Err(format!("the page after {:?} says that {next} is next", query.after));
            }
            query.after = Some(next);
        }
        let took = self.now().await?.since(before);
        let all = ListQuery { prefix, after: None, limit: usize::MAX };
        let expected = self.model.list(at(before), &all).resources;
        let names = |views: &[ResourceView]| views.iter().map(|view| view.name.clone()).collect::<Vec<_>>();
        if names(&expected) != names(&listed) {
            return Err(format!("listing: expected {:?}, got {:?}", names(&expected), names(&listed)));
        }
        for (expected, view) in expected.iter().zip(&listed) {
            let leniency = self.leniency(took);
            self.numbers.views(&expected.name, Some(expected), Some(view), leniency)?;
        }
        Ok(())
    }

    /// A notice may be lost, late or doubled, but never tells of a grant that was not made.
    pub(super) fn compare_notices(&mut self) -> Compared {
        let heard = std::mem::take(&mut *support::lock(&self.heard));
        let leniency = self.leniency(Duration::ZERO);
        for (name, notice) in heard {
            // A contender that lost its place and came again may have been granted several times.
            let mut made =
                self.made.iter().filter(|(of, made)| *of == name && made.contender == notice.contender);
            let stamps: Vec<_> = made
                .by_ref()
                .map(|(_, made)| *made)
                .filter(|made| leniency.in_parts || made.stamp == notice.stamp)
                .collect();
            let mut differences = Vec::new();
            let told = stamps.iter().any(|made| {
                let same = self.numbers.notice(&name, made, &notice, leniency);
                same.map_err(|what| differences.push(what)).is_ok()
            });
            if !told {
                return Err(format!("a notice of no grant: {notice:?}: {differences:?}"));
            }
            self.tally.notices += 1;
        }
        Ok(())
    }

    pub(super) async fn compare_views(&mut self) -> Compared {
        for name in self.names.clone() {
            let before = self.now().await?;
            let view = self.store().inspect(&name).await.map_err(|error| store_failed(&error))?;
            let took = self.now().await?.since(before);
            let expected = self.model.inspect(at(before), &name);
            let leniency = self.leniency(took);
            let same = self.numbers.views(&name, expected.as_ref(), view.as_ref(), leniency);
            same.map_err(|what| format!("{what}\nin the view of {name} at {before:?}"))?;
        }
        Ok(())
    }
}
