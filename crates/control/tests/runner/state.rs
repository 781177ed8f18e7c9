//! Invariants that ask commands and databases.

use std::process::Stdio;

use aftershock_control::api::OracleVerdict;
use aftershock_control::runner::RoundOutcome;
use aftershock_control::scenario::{Scenario, Secrets};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use crate::stage::{Controller, Log, reply, runner, service};

/// A round in which `invariants` are evaluated; the scenario's file is in `folder`.
async fn round(folder: &std::path::Path, invariants: &str) -> Result<RoundOutcome, String> {
    let log = Log::default();
    let entry = service("entry", &log, vec![reply(200, "")]).await;
    let text = format!(
        "apiVersion: aftershock.dev/v1alpha1\nkind: Scenario\nmetadata: {{name: s}}\nspec:\n  entry: {entry}\n  secrets: [PASS]\n  requests:\n    \
         - {{name: r, http: {{method: GET, path: /}}}}\n  invariants:\n{invariants}"
    );
    let file = folder.join("s.yaml");
    let scenario = Scenario::parse(&file.display().to_string(), &text).unwrap_or_else(|error| panic!("{error}"));
    let (runner, _) = runner(Controller::default(), scenario, &log).await;
    let secrets = Secrets::read(runner.scenario(), |_| Some(PASSWORD.to_owned())).unwrap();
    let outcome = runner.with_secrets(secrets).round(None, &()).await;
    let told = format!("{:?} {outcome:?}", log.lines());
    assert!(!told.contains(PASSWORD), "{told}");
    outcome.map_err(|error| error.to_string())
}

const PASSWORD: &str = "pa ss'w:rd@/";

#[tokio::test]
async fn a_command_holds_by_its_exit_code_and_by_what_it_prints() {
    let folder = tempfile::tempdir().unwrap();
    let outcome = round(
        folder.path(),
        r#"    - {name: exit, command: {run: [sh, -c, 'test "$0" = "$AFTERSHOCK_KEY" && test -z "$TRACESTATE"', "{key}"]}}
    - {name: code, command: {run: [sh, -c, 'exit 7'], exit: 7}}
    - {name: json, command: {run: [echo, '{"rows": [1, 2]}']}, json_path: "$.rows[1]", equals: 2}
    - {name: number, command: {run: [echo, "41"]}, at_least: 42}
    - {name: fails, command: {run: [sh, -c, 'echo "it is $P"; exit 1'], env: {P: "{env:PASS}"}}}
"#,
    );
    let outcome = outcome.await.unwrap();
    assert_eq!(outcome.oracle.found, OracleVerdict::Violated);
    assert_eq!(
        outcome.oracle.differences,
        [
            "number: expected at least 42, found 41",
            "fails: expected exit 0, found exit 1; it said \"it is {env:PASS}\""
        ]
    );
    let killed = r#"    - {name: late, command: {run: [sleep, "600"], timeout: 20ms}}"#;
    assert_eq!(
        round(folder.path(), killed).await.unwrap_err().lines().next().unwrap(),
        "failed to evaluate the invariant \"late\": sleep: timeout"
    );
}

#[tokio::test]
async fn an_sqlite_file_beside_the_scenario_is_asked() {
    let folder = tempfile::tempdir().unwrap();
    let connection = rusqlite::Connection::open(folder.path().join("shop.db")).unwrap();
    connection
        .execute_batch(
            "create table charges (item text, cents integer); insert into charges values ('a', 500), ('b', 700);",
        )
        .unwrap();
    let outcome = round(
        folder.path(),
        r#"    - {name: count, sql: {url: "sqlite:shop.db", query: "select count(*) from charges where cents > ?1", parameters: ["600"]}, equals: 1}
    - {name: rows, sql: {url: "sqlite:shop.db", query: "select item from charges order by item"}, json_path: "$[*].item", equals: [a, b]}
    - {name: none, sql: {url: "sqlite:shop.db", query: "select * from charges where item = ?1", parameters: ["{key}"]}, json_path: $, equals: []}
    - {name: two, sql: {url: "sqlite:shop.db", query: "select item, cents from charges where item = 'a'"}, equals: 1}
"#,
    )
    .await
    .unwrap();
    assert_eq!(
        outcome.oracle.differences,
        ["two: expected one row of one column where no `json_path` selects, found 1 rows of 2"]
    );
    let gone = r#"    - {name: gone, sql: {url: "sqlite:gone.db", query: "select 1"}, equals: 1}"#;
    assert!(round(folder.path(), gone).await.unwrap_err().contains("unable to open"));
}

/// A PostgreSQL server of our own; it goes with the folder's owner.
struct Postgres {
    _server: Child,
    port: u16,
    _folder: tempfile::TempDir,
}

/// The programs of the newest server that is installed.
fn programs() -> Option<std::path::PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    let mut found: Vec<_> = versions.flatten().map(|entry| entry.path().join("bin")).collect();
    found.retain(|bin| bin.join("initdb").is_file());
    found.sort();
    found.pop()
}

async fn postgres() -> Option<Postgres> {
    let Some(bin) = programs() else {
        let required = std::env::var_os("AFTERSHOCK_REQUIRE_PEERS").is_some_and(|value| value == "1");
        assert!(!required, "there is no PostgreSQL server (Debian: postgresql), and AFTERSHOCK_REQUIRE_PEERS=1");
        eprintln!("SKIPPED a test with PostgreSQL: there is no server (Debian: postgresql)");
        return None;
    };
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    std::fs::create_dir(&data).unwrap();
    std::fs::write(folder.path().join("password"), PASSWORD).unwrap();
    // The server does not run as root.
    let root = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").unwrap()) == 0;
    let as_owner = |program: &str| {
        let program = bin.join(program);
        if !root {
            return Command::new(program);
        }
        let mut command = Command::new("setpriv");
        command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups", "--"]).arg(program);
        command
    };
    if root {
        let owned = Command::new("chown").args(["-R", "postgres:postgres"]).arg(folder.path()).status().await;
        assert!(owned.unwrap().success());
    }
    let made = as_owner("initdb")
        .args(["--username=shop", "--auth=scram-sha-256", "--no-sync", "--encoding=UTF8", "--locale=C"])
        .arg(format!("--pwfile={}", folder.path().join("password").display()))
        .arg(&data)
        .output()
        .await
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut server = as_owner("postgres")
        .arg("-D")
        .arg(&data)
        .args([
            "-p",
            &port.to_string(),
            "-c",
            "listen_addresses=127.0.0.1",
            "-c",
            "unix_socket_directories=",
            "-c",
            "fsync=off",
        ])
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(server.stderr.take().unwrap()).lines();
    let mut said = String::new();
    while let Some(line) = lines.next_line().await.unwrap() {
        said.push_str(&line);
        if line.contains("ready to accept connections") {
            tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
            return Some(Postgres { _server: server, port, _folder: folder });
        }
    }
    panic!("the server did not start: {said}");
}

#[tokio::test]
async fn postgresql_is_asked_with_bound_parameters_of_its_own_types() {
    let Some(server) = postgres().await else { return };
    let mut config = tokio_postgres::Config::new();
    config.host("127.0.0.1").port(server.port).user("shop").password(PASSWORD).dbname("postgres");
    let (client, connection) = config.connect(tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client
        .batch_execute(
            "create sequence receipts; create table charges (id bigint, key text, amount numeric(10,2), at timestamptz, tags text[], doc jsonb, ok bool);
             insert into charges values (9007199254740993, 'o''1', 12.50, '2026-01-02T03:04:05Z', '{a,b}', '{\"n\": null}', true);",
        )
        .await
        .unwrap();
    let url = format!("postgres://shop@127.0.0.1:{}/postgres", server.port);
    let folder = tempfile::tempdir().unwrap();
    let ask = |name: &str, query: &str, parameters: &str, check: &str| {
        format!(
            "    - {{name: {name}, sql: {{url: \"{url}\", password: \"{{env:PASS}}\", query: \"{query}\", parameters: {parameters}}}, {check}}}\n"
        )
    };
    let holds = [
        ask(
            "count",
            "select count(*) from charges where id = $1 and amount = $2 and ok = $3;",
            "[\"9007199254740993\", \"12.5\", \"true\"]",
            "equals: 1",
        ),
        ask("key", "select amount from charges where key = $1", "[\"o'1\"]", "equals: 12.5"),
        ask("spliced", "select count(*) from charges where key = $1", "[\"x' or '1'='1\"]", "equals: 0"),
        ask("id", "select id from charges -- the only one", "[]", "equals: 9007199254740993"),
        ask(
            "rows",
            "select tags, doc, at at time zone 'UTC' as at from charges",
            "[]",
            "json_path: \"$[0].tags\", equals: [a, b]",
        ),
        ask("none", "select * from charges where key = $1", "[\"{key}\"]", "json_path: $, equals: []"),
        ask("with", "with c as (select * from charges) select doc from c", "[]", "equals: {n: null}"),
        ask("broken", "select ok from charges", "[]", "equals: false"),
    ];
    let outcome = round(folder.path(), &holds.concat()).await.unwrap();
    assert_eq!(outcome.oracle.differences, ["broken: expected false, found true"]);
    for (query, parameters, expected) in [
        ("delete from charges", "[]", "syntax error"),
        ("with d as (delete from charges returning *) select count(*) from d", "[]", "ERROR"),
        ("select nextval('receipts')", "[]", "read-only transaction"),
        ("select count(*) from charges where id = $1", "[x]", "invalid input syntax for type bigint"),
        ("select count(*) from charges where id = $1", "[]", "the query has 1 parameters, and 0 are given"),
        ("select nothing", "[]", "column \\\"nothing\\\" does not exist"),
        ("select generate_series(1, 2000) as n", "[]", "more than 1000 rows"),
    ] {
        let error = round(folder.path(), &ask("bad", query, parameters, "json_path: $, equals: []")).await.unwrap_err();
        let expected = expected.replace("\\\"", "\"");
        assert!(error.contains(&expected), "{query}: {error}");
    }
    assert_eq!(client.query_one("select count(*) from charges", &[]).await.unwrap().get::<_, i64>(0), 1);
    let without = holds[0].replace(", password: \"{env:PASS}\"", "");
    let error = round(folder.path(), &without).await.unwrap_err();
    assert!(error.contains("password"), "{error}");
}
