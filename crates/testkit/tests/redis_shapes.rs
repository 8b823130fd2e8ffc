//! The whole behaviour suite, and refinement, on every shape of Redis: single, by socket, with TLS, as a user with few
//! rights, behind sentinels, on a cluster; over RESP3 and RESP2; and with replicas that must have each grant.

use std::{process::ExitCode, time::Duration};

use libtest_mimic::{Arguments, Trial};
use lockkeeper::url;
use lockkeeper_testkit::{
    behaviour,
    refinement::{self, Subject},
    servers::{Redis, RedisCluster, RedisOptions, RedisSentinel},
};

/// Tests wait most of the time, so many more of them than cores run at once.
const THREADS: usize = 24;
/// The rights that a keeper needs, as in the error about missing rights.
const RIGHTS: &str = "~few:* &few:* -@all +@read +@write +@scripting +@pubsub +@connection +time +wait +info \
                      +config|get +cluster|slots +cluster|info +role";

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(THREADS);
    let servers = match Servers::start() {
        Ok(servers) => servers,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let mut trials = Vec::new();
    for (shape, url) in servers.urls() {
        let connect = {
            let url = url.clone();
            move || url::connector(&url).expect("a good URL")
        };
        match behaviour::trials(connect) {
            Ok(of_shape) => trials.extend(of_shape.into_iter().map(|trial| trial.with_kind(shape))),
            Err(error) => {
                eprintln!("{shape}: {error}");
                return ExitCode::FAILURE;
            }
        }
        for seed in 0..2 {
            let url = url.clone();
            let name = format!("refinement::seed_{seed}");
            trials.push(Trial::test(name, move || refine(url, seed)).with_kind(shape));
        }
    }
    let outcome = libtest_mimic::run(&arguments, trials);
    drop(servers);
    outcome.exit_code()
}

fn refine(url: String, seed: u64) -> Result<(), libtest_mimic::Failed> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let cluster = url.starts_with("redis+cluster:");
    let mut subject = Subject::in_real_time(move || url::connector(&url));
    if cluster {
        // A group for several nodes is applied at several times, and its answer has one of them.
        subject = subject.tolerance(Duration::from_millis(400));
    }
    runtime
        .block_on(refinement::check(&subject, seed, 60))
        .map(drop)
        .map_err(|failure| failure.to_string().into())
}

struct Servers {
    single: Redis,
    guarded: Redis,
    secured: Redis,
    sentinel: RedisSentinel,
    cluster: RedisCluster,
}

impl Servers {
    fn start() -> std::io::Result<Self> {
        Ok(Self {
            single: Redis::start()?,
            guarded: RedisOptions::default().user("few", "secret", RIGHTS).start()?,
            secured: RedisOptions::default().tls().start()?,
            sentinel: RedisSentinel::start()?,
            cluster: RedisCluster::start()?,
        })
    }

    fn urls(&self) -> Vec<(&'static str, String)> {
        vec![
            ("single", self.single.url()),
            ("resp2", format!("{}?protocol=resp2&namespace=resp2", self.single.url())),
            ("socket", format!("{}?db=1", self.single.socket_url())),
            ("few rights", format!("{}?namespace=few", self.guarded.url_as("few", "secret"))),
            ("tls", self.secured.url()),
            ("sentinel", self.sentinel.url()),
            ("sentinel resp2", format!("{}?protocol=resp2&namespace=resp2", self.sentinel.url())),
            ("wait", format!("{}?wait=1&namespace=wait", self.sentinel.url())),
            ("cluster", self.cluster.url()),
            ("cluster resp2", format!("{}?protocol=resp2&namespace=resp2", self.cluster.url())),
        ]
    }
}
