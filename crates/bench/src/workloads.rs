//! The functions that measure the workloads.

use crate::{
    Failure, bench::Bench, console, given_up, held, judge::Verdict, quorum, rates, redis, serve, sql,
    table::Row, tokens, waiting, waiting_processes, workload::Workload,
};

/// How often a workload is repeated until its rates are conclusive.
const TRIES: usize = 3;

/// Measures a workload, again if its rates were inconclusive, and adds its rows to `rows`. If it fails,
/// the rows of the attempt before are there.
pub(crate) async fn run(bench: &Bench, workload: Workload, rows: &mut Vec<Row>) -> Result<(), Failure> {
    let before = rows.len();
    for attempt in 1..=TRIES {
        eprintln!("{} ({attempt})", workload.word());
        let measured = measure(bench, workload).await?;
        let conclusive = measured.iter().all(|row| row.verdict() != Some(Verdict::Inconclusive));
        rows.truncate(before);
        rows.extend(measured);
        if conclusive {
            break;
        }
    }
    Ok(())
}

async fn measure(bench: &Bench, workload: Workload) -> Result<Vec<Row>, Failure> {
    let mut rows = match workload {
        Workload::W1 => rates::w1(bench).await,
        Workload::W2 => rates::w2(bench).await,
        Workload::W3 => rates::w3(bench).await,
        Workload::W3p => match (&bench.redis, &bench.sql, &bench.quorum) {
            (Some(server), ..) => redis::w3p(server, &bench.pace).await,
            (None, Some(sql), _) => sql::w3p(&sql.server, &bench.pace).await,
            (None, None, Some(members)) => quorum::w3p(members, &bench.pace).await,
            (None, None, None) => tokens::w3p(bench).await,
        },
        Workload::W4 => waiting::w4(bench).await,
        Workload::W4p => waiting_processes::w4p(bench).await,
        Workload::Held => held::held(bench).await,
        Workload::GivenUp => given_up::given_up(bench).await,
        Workload::Serve => serve::serve(bench).await,
        Workload::Console => console::console(bench).await,
    }?;
    if let (Workload::W1, Some(sql)) = (workload, &bench.sql) {
        rows.extend(sql.relayed.w1().await?);
    }
    if let Some(zookeeper) = &bench.zookeeper {
        rows.extend(match workload {
            Workload::W1 => zookeeper.requests(bench).await?,
            Workload::W3p => zookeeper.w3p(bench).await?,
            Workload::W4 => zookeeper.waiting(bench).await?,
            Workload::W2
            | Workload::W3
            | Workload::W4p
            | Workload::Held
            | Workload::GivenUp
            | Workload::Serve
            | Workload::Console => Vec::new(),
        });
    }
    Ok(rows)
}
