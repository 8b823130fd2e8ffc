//! The parts of this program as a child process of itself: the words of its command line name the part.

use std::{io::Write as _, path::Path, time::Duration};

use crate::{
    Failure,
    processes::{self, runtime},
    quorum, redis, serve, sql, tokens, waiting_processes, zookeeper,
};

/// Runs the part of a child process that `words` name.
pub(crate) fn main(words: &[String]) -> Result<(), Failure> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let times = match words[..] {
        ["keeper", url, millis] => {
            runtime()?.block_on(processes::keeper(url, Duration::from_millis(millis.parse()?)))?
        }
        ["token", folder, own, millis] => {
            tokens::token(Path::new(folder), own, Duration::from_millis(millis.parse()?))?
        }
        ["bare-http", url] => {
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
            return runtime.block_on(serve::bare(url));
        }
        ["sql-keeper", url, millis] => {
            runtime()?.block_on(sql::keeper(url, Duration::from_millis(millis.parse()?)))?
        }
        ["sql-table", url, millis] => {
            runtime()?.block_on(sql::table(url, Duration::from_millis(millis.parse()?)))?
        }
        ["sql-token", url, own, millis] => {
            let length = Duration::from_millis(millis.parse()?);
            runtime()?.block_on(sql::token(url, own.parse()?, length))?
        }
        ["waiter", url] => return waiting_processes::waiter(url),
        ["zookeeper", who, url] => return zookeeper::processes::child(who, url),
        ["ring", servers, folder, own] => {
            return zookeeper::processes::ring_child(servers, folder, own.parse()?);
        }
        ["ping", url, own, next, millis] => {
            let length = Duration::from_millis(millis.parse()?);
            runtime()?.block_on(redis::ping(url, own, next, length))?
        }
        ["barest", url, own, millis] => {
            runtime()?.block_on(redis::barest(url, own, Duration::from_millis(millis.parse()?)))?
        }
        ["redlock", urls, name, millis] => {
            runtime()?.block_on(quorum::redlock(urls, name, Duration::from_millis(millis.parse()?)))?
        }
        _ => return Err("a child has other words".into()),
    };
    let lines: String = times.iter().map(|(granted, released)| format!("{granted} {released}\n")).collect();
    std::io::stdout().write_all(lines.as_bytes())?;
    Ok(())
}
