//! What is forgotten, and what is never forgotten: the recordings that guards are synthesized from.

use std::collections::BTreeSet;
use std::time::Duration;

use rusqlite::{Connection, params};

use super::rows;
use crate::api::{OracleVerdict, Verdict};

/// How long rounds are kept. The default keeps all.
///
/// Whatever is said here, the latest clean recordings of each scenario stay, since guards come from them, and so does
/// what is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Retention {
    /// Rounds that began longer ago are forgotten.
    pub age: Option<Duration>,
    /// Of more rounds than these, the oldest are forgotten.
    pub rounds: Option<u64>,
}

impl Retention {
    /// Whether anything is ever forgotten.
    pub fn is_unlimited(&self) -> bool {
        self.age.is_none() && self.rounds.is_none()
    }
}

/// Forget what is beyond `retention` at `now` (seconds since the Unix epoch), but none of the latest `recordings` clean
/// rounds of a scenario. Returns how many rounds were forgotten.
pub(super) fn prune(
    connection: &mut Connection,
    retention: &Retention,
    recordings: u32,
    now: i64,
) -> rows::Result<u64> {
    if retention.is_unlimited() {
        return Ok(0);
    }
    let transaction = connection.transaction()?;
    let oldest =
        retention.age.map_or(i64::MIN, |age| now.saturating_sub(i64::try_from(age.as_secs()).unwrap_or(i64::MAX)));
    let most = retention.rounds.map_or(-1, |rounds| i64::try_from(rounds).unwrap_or(i64::MAX));
    let beyond: BTreeSet<i64> = {
        // A negative limit is none to SQLite: the second half is then empty, since nothing lies behind all rows.
        let mut statement = transaction.prepare_cached(
            "SELECT id FROM rounds WHERE verdict IS NOT NULL AND
                (started < ?1 OR (?2 >= 0 AND id NOT IN (SELECT id FROM rounds ORDER BY id DESC LIMIT ?2)))",
        )?;
        let ids = statement.query_map(params![oldest, most], |row| row.get(0))?;
        ids.collect::<rusqlite::Result<_>>()?
    };
    let kept: BTreeSet<i64> = {
        let mut statement = transaction.prepare_cached(
            "SELECT id FROM (
                SELECT id, row_number() OVER (PARTITION BY scenario ORDER BY id DESC) AS place
                FROM rounds WHERE verdict = ?1 AND coalesce(oracle, ?2) = ?2
             ) WHERE place <= ?3",
        )?;
        let clean = params![rows::word(&Verdict::Clean), rows::word(&OracleVerdict::Held), recordings];
        let ids = statement.query_map(clean, |row| row.get(0))?;
        ids.collect::<rusqlite::Result<_>>()?
    };
    let mut forgotten = 0;
    for id in beyond.difference(&kept) {
        // What belongs to it goes with it.
        forgotten += transaction.prepare_cached("DELETE FROM rounds WHERE id = ?1")?.execute([id])? as u64;
    }
    if forgotten > 0 {
        transaction.execute("DELETE FROM plans WHERE id NOT IN (SELECT plan FROM rounds)", [])?;
    }
    transaction.commit()?;
    Ok(forgotten)
}
