//! The keepers that have subscribed to a topic: the table `watcher`.

use lockkeeper_core::{
    KeeperId,
    store::{Topic, Wake},
};
use lockkeeper_rows::wake_text::topic_words;
use rusqlite::{Result, Transaction, params};

/// Whether anybody has subscribed to anything.
pub(crate) fn any(transaction: &Transaction<'_>) -> Result<bool> {
    transaction.prepare_cached("SELECT 1 FROM watcher")?.exists([])
}

/// Adds a keeper; it may be there already.
pub(crate) fn add(transaction: &Transaction<'_>, topic: &Topic, keeper: KeeperId) -> Result<()> {
    execute(transaction, "INSERT OR IGNORE INTO watcher VALUES (?, ?, ?)", topic, keeper)
}

/// Removes a keeper, if it is there.
pub(crate) fn remove(transaction: &Transaction<'_>, topic: &Topic, keeper: KeeperId) -> Result<()> {
    execute(transaction, "DELETE FROM watcher WHERE topic = ? AND name = ? AND keeper = ?", topic, keeper)
}

fn execute(transaction: &Transaction<'_>, statement: &str, topic: &Topic, keeper: KeeperId) -> Result<()> {
    let Some((word, name)) = topic_words(topic) else { return Ok(()) };
    transaction.prepare_cached(statement)?.execute(params![word, name.as_str(), keeper.to_string()])?;
    Ok(())
}

/// Adds a wake for each keeper that has subscribed to `topic`.
pub(crate) fn wake(
    transaction: &Transaction<'_>,
    topic: &Topic,
    wakes: &mut Vec<(KeeperId, Wake)>,
) -> Result<()> {
    let Some((word, name)) = topic_words(topic) else { return Ok(()) };
    let mut find = transaction.prepare_cached("SELECT keeper FROM watcher WHERE topic = ? AND name = ?")?;
    let mut rows = find.query([word, name.as_str()])?;
    while let Some(row) = rows.next()? {
        if let Ok(keeper) = row.get_ref(0)?.as_str()?.parse() {
            wakes.push((keeper, Wake::Changed(topic.clone())));
        }
    }
    Ok(())
}
