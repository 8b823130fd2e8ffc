//! The whole behaviour suite, and refinement, on every shape of Redis: single, by socket, with TLS, as a user with few
//! rights, behind sentinels, on a cluster; over RESP3 and RESP2; and with replicas that must have each grant.

use std::{process::ExitCode, time::Duration};

use lockkeeper_testkit::{
    servers::{Redis, RedisCluster, RedisOptions, RedisSentinel},
    shapes::{self, Shape},
};

/// Tests wait most of the time, so many more of them than cores run at once.
const THREADS: usize = 24;
/// The rights that a keeper needs, as in the error about missing rights.
const RIGHTS: &str = "~few:* &few:* -@all +@read +@write +@scripting +@pubsub +@connection +time +wait +info \
                      +config|get +cluster|slots +cluster|info +role";

/// On a cluster, a group for several nodes is applied at several times, and its answer has one of them.
const CLUSTER_TOLERANCE: Duration = Duration::from_millis(400);

fn main() -> ExitCode {
    shapes::run(THREADS, Servers::start, Servers::shapes)
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

    fn shapes(&self) -> Vec<Shape> {
        let Self { single, guarded, secured, sentinel, cluster } = self;
        let old = |url: String| format!("{url}?protocol=resp2&namespace=resp2");
        vec![
            Shape::new("single", single.url()),
            Shape::new("resp2", old(single.url())),
            Shape::new("socket", format!("{}?db=1", single.socket_url())),
            Shape::new("few rights", format!("{}?namespace=few", guarded.url_as("few", "secret"))),
            Shape::new("tls", secured.url()),
            Shape::new("sentinel", sentinel.url()),
            Shape::new("sentinel resp2", old(sentinel.url())),
            Shape::new("wait", format!("{}?wait=1&namespace=wait", sentinel.url())),
            Shape::new("cluster", cluster.url()).tolerance(CLUSTER_TOLERANCE),
            Shape::new("cluster resp2", old(cluster.url())).tolerance(CLUSTER_TOLERANCE),
        ]
    }
}
