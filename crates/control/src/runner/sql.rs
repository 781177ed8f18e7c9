//! Asks a database one question: reading only, parameters bound, the answer as JSON.

use std::error::Error as StdError;
use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::BytesMut;
use rusqlite::OpenFlags;
use rusqlite::types::ValueRef;
use serde_json::{Map, Value};
use tokio_postgres::NoTls;
use tokio_postgres::types::{Format, IsNull, ToSql, Type, to_sql_checked};

use crate::scenario::Database;

/// The most rows of an answer.
const MOST_ROWS: usize = 1_000;

/// The rows that `query` finds, each an object of its columns.
pub(crate) async fn rows(
    database: Database,
    password: Option<&str>,
    query: &str,
    parameters: Vec<String>,
    timeout: Duration,
) -> Result<Vec<Value>, String> {
    // One statement; its end needs no mark.
    let query = query.trim().trim_end_matches(';').trim_end().to_owned();
    let rows = match database {
        Database::Sqlite(path) => sqlite(path.as_path(), query, parameters, timeout).await?,
        Database::Postgres(mut config) => {
            if let Some(password) = password {
                config.password(password);
            }
            config.connect_timeout(timeout);
            let asked = postgres(&config, &query, &parameters);
            tokio::time::timeout(timeout, asked).await.map_err(|_| "timeout".to_owned())??
        }
    };
    match rows.len() {
        0..=MOST_ROWS => Ok(rows),
        _ => Err(format!("more than {MOST_ROWS} rows, too many to be checked")),
    }
}

async fn sqlite(path: &Path, query: String, parameters: Vec<String>, timeout: Duration) -> Result<Vec<Value>, String> {
    // A missing file would be created by some ways of opening it.
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = rusqlite::Connection::open_with_flags(path, flags)
        .map_err(|error| format!("failed to open {}: {error}", path.display()))?;
    connection.busy_timeout(timeout).map_err(|error| error.to_string())?;
    let interrupt = connection.get_interrupt_handle();
    let asking = tokio::task::spawn_blocking(move || ask_sqlite(&connection, &query, &parameters));
    let mut asking = std::pin::pin!(asking);
    let asked = match tokio::time::timeout(timeout, &mut asking).await {
        Ok(asked) => asked,
        Err(_) => {
            interrupt.interrupt();
            return Err("timeout".to_owned());
        }
    };
    asked.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
}

fn ask_sqlite(
    connection: &rusqlite::Connection,
    query: &str,
    parameters: &[String],
) -> Result<Vec<Value>, rusqlite::Error> {
    let mut statement = connection.prepare(query)?;
    let columns: Vec<String> = statement.column_names().map(str::to_owned).collect();
    let mut found = statement.query(rusqlite::params_from_iter(parameters))?;
    let mut rows = Vec::new();
    while let Some(row) = found.next()?
        && rows.len() <= MOST_ROWS
    {
        let mut object = Map::new();
        for (index, name) in columns.iter().enumerate() {
            let value = match row.get_ref(index)? {
                ValueRef::Null => Value::Null,
                ValueRef::Integer(number) => number.into(),
                ValueRef::Real(number) => number.into(),
                ValueRef::Text(text) => String::from_utf8_lossy(text).into(),
                ValueRef::Blob(bytes) => STANDARD.encode(bytes).into(),
            };
            object.insert(name.clone(), value);
        }
        rows.push(Value::Object(object));
    }
    Ok(rows)
}

async fn postgres(config: &tokio_postgres::Config, query: &str, parameters: &[String]) -> Result<Vec<Value>, String> {
    let (mut client, connection) = config.connect(NoTls).await.map_err(words)?;
    // The connection ends with its client.
    let driving = tokio::spawn(connection);
    let result = async {
        let transaction = client.build_transaction().read_only(true).start().await.map_err(words)?;
        // The server knows best how its types are written as JSON.
        let wrapped = format!(
            "select coalesce(json_agg(row_to_json(found)), '[]')::text from (select * from (\n{query}\n) as asked limit {}) \
             as found",
            MOST_ROWS + 1
        );
        let statement = transaction.prepare(&wrapped).await.map_err(words)?;
        if statement.params().len() != parameters.len() {
            let (wanted, given) = (statement.params().len(), parameters.len());
            return Err(format!("the query has {wanted} parameters, and {given} are given"));
        }
        let texts: Vec<Text<'_>> = parameters.iter().map(|text| Text(text)).collect();
        let bound: Vec<&(dyn ToSql + Sync)> = texts.iter().map(|text| text as &(dyn ToSql + Sync)).collect();
        let row = transaction.query_one(&statement, &bound).await.map_err(words)?;
        let rows: String = row.try_get(0).map_err(words)?;
        serde_json::from_str(&rows).map_err(|error| error.to_string())
    }
    .await;
    driving.abort();
    result
}

/// What the server said, or what became of the connection.
fn words(error: tokio_postgres::Error) -> String {
    match (error.as_db_error(), error.source()) {
        (Some(of_server), _) => format!("{}: {}", of_server.severity(), of_server.message()),
        (None, Some(cause)) => format!("{error}: {cause}"),
        (None, None) => error.to_string(),
    }
}

/// A parameter in the server's own text form of whatever type it has there.
#[derive(Debug)]
struct Text<'a>(&'a str);

impl ToSql for Text<'_> {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn StdError + Sync + Send>> {
        out.extend_from_slice(self.0.as_bytes());
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn encode_format(&self, _: &Type) -> Format {
        Format::Text
    }

    to_sql_checked!();
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    async fn ask(path: &Path, query: &str, parameters: &[&str]) -> Result<Vec<Value>, String> {
        let parameters = parameters.iter().map(|text| (*text).to_owned()).collect();
        rows(Database::Sqlite(path.to_owned()), None, query, parameters, Duration::from_secs(5)).await
    }

    #[tokio::test]
    async fn sqlite_answers_with_its_rows_and_is_only_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("shop.db");
        let connection = rusqlite::Connection::open(&path).unwrap();
        connection
            .execute_batch(
                "create table charges (key text, cents integer, rate real, note text, raw blob);
                 insert into charges values ('o''1', 500, 0.5, null, x'6869'), ('other', 1, 1, 'n', null);",
            )
            .unwrap();
        let all = ask(&path, "select * from charges where key = ?1 and cents = ?2;", &["o'1", "500"]).await.unwrap();
        assert_eq!(all, [json!({"key": "o'1", "cents": 500, "rate": 0.5, "note": null, "raw": "aGk="})]);
        let spliced = ask(&path, "select count(*) as n from charges where key = ?1", &["x' or '1'='1"]).await.unwrap();
        assert_eq!(spliced, [json!({"n": 0})]);
        for (query, parameters, expected) in [
            ("delete from charges", &[][..], "readonly"),
            ("select 1; select 2", &[], "Multiple statements"),
            ("select ?1", &[], "Wrong number of parameters"),
            ("select nothing_of_it", &[], "no such column"),
            ("with recursive n(i) as (select 1 union all select i + 1 from n) select i from n", &[], "too many"),
        ] {
            let error = ask(&path, query, parameters).await.unwrap_err();
            assert!(error.contains(expected), "{query}: {error}");
        }
        let gone = folder.path().join("gone.db");
        assert!(ask(&gone, "select 1", &[]).await.unwrap_err().contains("unable to open"));
        assert!(!gone.exists());
    }
}
