//! Rows as shown to people.

use lockkeeper_core::{
    Name,
    model::Now,
    store::{Page, ResourceView},
};

use crate::{BadRow, Stored, loaded::Loaded};

/// A resource as shown to people; `None` if nobody holds it or waits for it.
///
/// # Errors
/// If a row cannot be this program's.
pub fn view(name: &Name, stored: Stored, now: Now) -> Result<Option<ResourceView>, BadRow> {
    Ok(Loaded::new(stored)?.resource.view(name, now))
}

/// Returns the page that `views` start with, which are in order of name. It has `limit` resources, but at least one, if
/// there are so many.
///
/// # Errors
/// The first one among the views that it looks at: those of the page, and one more.
pub fn page<E>(views: impl IntoIterator<Item = Result<ResourceView, E>>, limit: usize) -> Result<Page, E> {
    let limit = limit.max(1);
    let mut resources: Vec<ResourceView> = Vec::new();
    for view in views {
        if resources.len() == limit {
            view?;
            let next = resources.last().map(|last| last.name.clone());
            return Ok(Page { resources, next });
        }
        resources.push(view?);
    }
    Ok(Page { resources, next: None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        EntryRow, ResourceRow, RowHolder,
        samples::{at, holder, name, waiter},
    };

    fn stored() -> Stored {
        let in_row = RowHolder::Here(EntryRow::of_holder(7, &holder(1, 7)));
        let row = ResourceRow { high_water: 7, capacity: 2, holder: in_row };
        let entries = vec![EntryRow::of_waiter(1, &waiter(3)), EntryRow::of_holder(6, &holder(2, 6))];
        Stored { row, entries }
    }

    #[test]
    fn holders_are_shown_by_number_and_nothing_that_has_ended() {
        let seen = view(&name("stock"), stored(), at(1)).expect("good rows").expect("held");
        let numbers: Vec<_> = seen.holders.iter().map(|holder| holder.token.number()).collect();
        assert_eq!((numbers, seen.waiters.len()), (vec![6, 7], 1));
        assert_eq!(view(&name("stock"), stored(), at(60)), Ok(None));
        assert_eq!(view(&name("stock"), Stored::default(), at(1)), Ok(None));
    }

    #[test]
    fn a_page_says_where_the_next_one_starts() {
        let views = |count: usize| {
            let names = ["a", "b", "c"].into_iter().take(count);
            names.map(|text| Ok::<_, BadRow>(view(&name(text), stored(), at(1))?.expect("held")))
        };
        let cut = |count, limit| {
            let page = page(views(count), limit).expect("good rows");
            (page.resources.len(), page.next)
        };
        assert_eq!(cut(3, 2), (2, Some(name("b"))));
        assert_eq!(cut(2, 2), (2, None));
        assert_eq!(cut(2, 0), (1, Some(name("a"))));
        assert_eq!(cut(0, 2), (0, None));
    }
}
