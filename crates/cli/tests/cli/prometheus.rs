//! Every query of the dashboard and of the alert rules finds data in a Prometheus that scrapes a real server.

use std::{
    fs,
    io::{BufRead, BufReader},
    net::TcpListener,
    time::Duration,
};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::world::{LIMIT, Running, World, eventually};

const TOKEN: &str = "promprompromprom";

/// A server with traffic on all paths that are counted.
struct Traffic {
    url: String,
}

impl Traffic {
    fn call(&self, world: &World, path: &str, body: &str) -> Value {
        let mut curl = world.command("curl");
        curl.args([
            "-s",
            "-H",
            &format!("Authorization: Bearer {TOKEN}"),
            "-H",
            "Content-Type: application/json",
        ]);
        curl.args(["-d", body, &format!("{}{path}", self.url)]);
        serde_json::from_str(&Running::spawn(curl).done().out).unwrap_or_default()
    }

    /// Makes calls of all kinds: an acquisition, a renewal, a wait in vain, a fence and a release.
    fn round(&self, world: &World) {
        let held = self.call(world, "/v1/acquire", "{\"name\":\"hot\",\"lease\":\"1m\"}");
        let lease = format!("{{\"lease\":{}}}", held["lease"]);
        self.call(world, "/v1/renew", &lease);
        self.call(world, "/v1/acquire", "{\"name\":\"hot\",\"wait\":\"200ms\"}");
        self.call(world, "/v1/fence", &format!("{{\"name\":\"hot\",\"token\":{}}}", held["token"]));
        self.call(world, "/v1/release", &lease);
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port()
}

/// Returns the rules of the page, as a file of their own.
fn rules() -> String {
    let page = include_str!("../../../../docs/observability.md");
    page.split("```yaml\n").nth(1).and_then(|rest| rest.split("```").next()).expect("rules").to_owned()
}

/// Returns the queries of the rules, without their limits, which are hopefully not reached.
fn rule_queries() -> Vec<String> {
    let rules = rules();
    let queries = rules.lines().filter_map(|line| line.trim().strip_prefix("expr: "));
    let without_limit = |query: &str| {
        let end =
            query.rfind(" > ").or(query.rfind(" == ")).unwrap_or_else(|| panic!("{query} has no limit"));
        query[..end].to_owned()
    };
    queries.flat_map(|query| query.split(" or ").map(without_limit).collect::<Vec<_>>()).collect()
}

/// Returns the queries of the dashboard, as Grafana would send them.
fn dashboard_queries() -> Vec<String> {
    let dashboard: Value =
        serde_json::from_str(include_str!("../../../../docs/grafana/lockkeeper.json")).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().expect("targets"));
    let query = |target: &Value| {
        let text = target["expr"].as_str().expect("a query");
        text.replace("$instance", ".*").replace("$__rate_interval", "30s")
    };
    targets.map(query).collect()
}

#[test]
fn every_query_of_dashboard_and_rules_finds_data() {
    let world = World::new();
    world.write_private("tokens", &format!("use {TOKEN} prometheus\n"));
    let options = ["serve", "--listen", "127.0.0.1:0", "--token-file", "tokens", "--hottest", "5"];
    let mut server = world.start(&options);
    let line = BufReader::new(server.stdout()).lines().next().expect("it prints").expect("text");
    let traffic = Traffic { url: line.strip_prefix("listening on ").expect("a URL").to_owned() };
    fs::write(world.path("rules.yml"), rules()).expect("written");
    let target = traffic.url.trim_start_matches("http://");
    let settings = format!(
        "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: [rules.yml]\nscrape_configs:\n  - \
         job_name: lockkeeper\n    authorization: {{credentials: {TOKEN}}}\n    static_configs: [{{targets: \
         ['{target}']}}]\n"
    );
    fs::write(world.path("prometheus.yml"), settings).expect("written");
    for words in [["check", "rules", "rules.yml"], ["check", "config", "prometheus.yml"]] {
        let mut promtool = world.command("promtool");
        promtool.args(words);
        let done = Running::spawn(promtool).done();
        assert_eq!(done.code, Some(0), "{done:?}");
    }
    let port = free_port();
    let mut prometheus = world.command("prometheus");
    prometheus.args(["--config.file=prometheus.yml", "--storage.tsdb.path=data", "--log.level=error"]);
    prometheus.arg(format!("--web.listen-address=127.0.0.1:{port}"));
    let prometheus = Running::spawn(prometheus);

    let mut missing = [dashboard_queries(), rule_queries()].concat();
    assert!(missing.len() >= 30, "{}", missing.len());
    let start = std::time::Instant::now();
    while !missing.is_empty() {
        assert!(start.elapsed() < LIMIT, "no data for {missing:#?}");
        traffic.round(&world);
        missing.retain(|query| !has_data(&world, port, query));
        std::thread::sleep(Duration::from_millis(500));
    }
    let rules = ask(&world, port, "rules", "");
    let count = rules["data"]["groups"][0]["rules"].as_array().map_or(0, Vec::len);
    assert!(count >= 6, "{rules}");
    prometheus.signal(Signal::SIGTERM);
    eventually("its end", || (!crate::world::group_lives(&prometheus.pid().to_string())).then_some(()));
    server.signal(Signal::SIGTERM);
    assert_eq!(server.done().code, Some(0));
}

fn ask(world: &World, port: u16, what: &str, query: &str) -> Value {
    let mut curl = world.command("curl");
    curl.args(["-s", "-G", &format!("http://127.0.0.1:{port}/api/v1/{what}")]);
    curl.arg("--data-urlencode").arg(format!("query={query}"));
    serde_json::from_str(&Running::spawn(curl).done().out).unwrap_or_default()
}

/// Whether a query has an answer with a number in it.
fn has_data(world: &World, port: u16, query: &str) -> bool {
    let answer = ask(world, port, "query", query);
    assert_ne!(answer["status"], "error", "{query}: {answer}");
    let results = answer["data"]["result"].as_array().cloned().unwrap_or_default();
    results.iter().any(|result| result["value"][1].as_str().is_some_and(|value| value != "NaN"))
}
