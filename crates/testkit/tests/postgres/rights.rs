//! A user who may not make tables: an administrator runs the SQL that `lockkeeper schema` prints, and that is enough.

use lockkeeper_testkit::{databases, servers::Postgres};

/// Everything that makes up the tables of a schema.
fn tables(server: &Postgres, schema: &str) -> String {
    let columns = format!(
        "SELECT c.relname, c.reloptions, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
             pg_get_expr(d.adbin, d.adrelid)
         FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0
             LEFT JOIN pg_attrdef AS d ON d.adrelid = c.oid AND d.adnum = a.attnum
         WHERE c.relnamespace = '{schema}'::regnamespace AND c.relkind IN ('r', 'i') AND c.relname NOT LIKE 'member%' ORDER BY c.relname, a.attnum"
    );
    let layout = format!("SELECT only_one, layout, floor FROM {schema}.store");
    server.sql(&columns).expect("asked") + &server.sql(&layout).expect("asked")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_printed_sql_is_all_that_a_plain_user_needs() {
    let server = Postgres::start().expect("started");
    server.sql("CREATE ROLE \"a b\" LOGIN; CREATE TABLE public.theirs (x integer)").expect("made");
    let url = server.url_as("a%20b", None);
    let refused = lockkeeper::connect(&url).await.map(drop).expect_err("no rights").to_string();
    assert!(refused.contains("lockkeeper schema --store"), "{refused}");
    let printed = lockkeeper::schema::sql(&url).expect("printed");
    server.sql(&printed).expect("an administrator may");
    // Also again, for anything that was forgotten: it changes nothing that is there.
    let id = server.sql("SELECT id FROM lockkeeper.store").expect("asked");
    server.sql(&lockkeeper::schema::sql(&url).expect("printed")).expect("again");
    assert_eq!(server.sql("SELECT id FROM lockkeeper.store").expect("asked"), id);
    // The store makes the same.
    drop(lockkeeper::connect(&format!("{}?schema=other", server.url())).await.expect("connected"));
    assert_eq!(tables(&server, "lockkeeper"), tables(&server, "other"));

    databases::is_member(&url).await;
    let waits = "SELECT count(*) FROM lockkeeper.entry WHERE entry IS NOT NULL";
    databases::uses_everything(&url, || server.sql(waits).expect("asked") != "0").await;
    server.sql("UPDATE lockkeeper.resource SET used = 1, ends = 1, holder = NULL; UPDATE lockkeeper.latch SET used = 1").expect("aged");
    lockkeeper_postgres::sweep(&url).await.expect("it may sweep");
    let left = "SELECT (SELECT count(*) FROM lockkeeper.resource) + (SELECT count(*) FROM lockkeeper.latch)";
    assert_eq!(server.sql(left).expect("asked"), "0");
    let theirs = "SELECT has_table_privilege('a b', 'public.theirs', 'SELECT')";
    assert_eq!(server.sql(theirs).expect("asked"), "f", "other tables are not its business");
}

/// In a schema that others use, too, the rights are on the store's own tables.
#[tokio::test(flavor = "multi_thread")]
async fn rights_are_for_the_tables_of_the_store_only() {
    let server = Postgres::start().expect("started");
    server.sql("CREATE ROLE app LOGIN; CREATE TABLE public.theirs (x integer)").expect("made");
    let url = format!("{}?schema=public", server.url_as("app", None));
    server.sql(&lockkeeper::schema::sql(&url).expect("printed")).expect("an administrator may");
    let keeper = lockkeeper::connect(&url).await.expect("it may use the tables");
    keeper.mutex("a").lock().await.expect("locked").release().await.expect("released");
    let theirs = "SELECT has_table_privilege('app', 'public.theirs', 'SELECT')";
    assert_eq!(server.sql(theirs).expect("asked"), "f");
}
