//! `docs/stores.md` has every option that a store accepts and no other, and its examples are URLs that stores accept.

use std::collections::BTreeSet;

use lockkeeper::{StoreError, memory, store::Connector};

const PAGE: &str = include_str!("../../../docs/stores.md");

/// The part of the page under one heading.
fn section(heading: &str) -> &'static str {
    let (_, after) = PAGE.split_once(&format!("\n## {heading}\n")).expect(heading);
    after.split_once("\n## ").map_or(after, |(section, _)| section)
}

/// The lines of the section's block of URLs.
fn urls(section: &'static str) -> Vec<&'static str> {
    let (_, after) = section.split_once("```text\n").expect("a block of URLs");
    after.split_once("\n```").expect("its end").0.lines().collect()
}

/// The first cell of each row, without its marks: `option=value`.
fn options(section: &'static str) -> Vec<&'static str> {
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` |"));
    rows.map(|(option, _)| option).collect()
}

/// The store that a section of the page describes.
struct Store {
    heading: &'static str,
    options: &'static [&'static str],
    connector: fn(&str) -> Result<Connector, StoreError>,
    /// A URL to which one more option can be appended; `with_tls` adds the parts that the options for TLS need.
    plain: &'static str,
    with_tls: &'static str,
}

/// Settings alone get members.
fn quorum(url: &str) -> Result<Connector, StoreError> {
    let members = if url.split(',').count() < 3 { ",memory:a,memory:b,memory:c" } else { "" };
    lockkeeper_quorum::connector(&format!("{url}{members}"), |member| match member.split(':').next() {
        Some("redis") => lockkeeper_redis::connector(member),
        Some("postgres") => lockkeeper_postgres::connector(member),
        Some("mariadb") => lockkeeper_mysql::connector(member),
        Some("sqlite") => lockkeeper_sqlite::connector(member),
        _ => Ok(memory::connector(member)),
    })
}

const STORES: [Store; 7] = [
    Store {
        heading: "Memory",
        options: &[],
        connector: |url| Ok(memory::connector(url)),
        plain: "memory:",
        with_tls: "",
    },
    Store {
        heading: "SQLite",
        options: &[],
        connector: lockkeeper_sqlite::connector,
        plain: "sqlite:a",
        with_tls: "",
    },
    Store {
        heading: "PostgreSQL",
        options: lockkeeper_postgres::OPTIONS,
        connector: lockkeeper_postgres::connector,
        plain: "postgres://a/b?",
        with_tls: "",
    },
    Store {
        heading: "MariaDB and MySQL",
        options: lockkeeper_mysql::OPTIONS,
        connector: lockkeeper_mysql::connector,
        plain: "mysql://a/b?",
        with_tls: "",
    },
    Store {
        heading: "Redis",
        options: lockkeeper_redis::OPTIONS,
        connector: lockkeeper_redis::connector,
        plain: "redis://a?",
        with_tls: "rediss://a?",
    },
    Store {
        heading: "ZooKeeper",
        options: lockkeeper_zookeeper::OPTIONS,
        connector: lockkeeper_zookeeper::connector,
        plain: "zookeeper://a?",
        with_tls: "zookeeper://a?tls=true&ca=/ca.pem&cert=/c.pem&key=/k.pem&",
    },
    Store {
        heading: "Quorum",
        options: lockkeeper_quorum::OPTIONS,
        connector: quorum,
        plain: "quorum:",
        with_tls: "",
    },
];

#[test]
fn every_option_of_every_store_has_its_row_and_works_as_written() {
    for Store { heading, options: accepted, connector, plain, with_tls } in &STORES {
        let rows = options(section(heading));
        let names: Vec<&str> = rows.iter().map(|row| row.split_once('=').expect(row).0).collect();
        let unique: BTreeSet<&str> = names.iter().copied().collect();
        assert_eq!(names.len(), unique.len(), "{heading}: {names:?}");
        assert_eq!(unique, accepted.iter().copied().collect(), "{heading}: the page, and the store");
        for (name, row) in names.iter().zip(rows) {
            let tls = ["tls", "ca", "cert", "key"].contains(name);
            let url = format!("{}{row}", if tls { with_tls } else { plain });
            connector(&url).unwrap_or_else(|error| panic!("{heading}: {row}: {error}"));
        }
    }
    let headings = PAGE.lines().filter(|line| line.starts_with("## ") && *line != "## The lease").count();
    assert_eq!(headings, STORES.len(), "one heading per store");
}

#[test]
fn an_option_that_is_not_on_the_page_is_refused() {
    for Store { heading, options, connector, plain, .. } in
        STORES.iter().filter(|store| !store.options.is_empty())
    {
        for option in ["colour=red", "Namespace=a", "=1"] {
            let error = connector(&format!("{plain}{option}")).expect_err(option).to_string();
            assert!(options.iter().all(|option| error.contains(option)), "{heading}: {error}");
        }
    }
}

#[test]
fn the_urls_of_the_page_are_understood() {
    for Store { heading, connector, .. } in &STORES {
        for url in urls(section(heading)) {
            connector(url).unwrap_or_else(|error| panic!("{heading}: {url}: {error}"));
        }
    }
}
