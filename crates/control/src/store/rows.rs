//! The statements: values of the API to rows, and back.

use std::collections::BTreeMap;

use aftershock_core::id::ExecutionId;
use aftershock_core::name::{Api, Service};
use aftershock_core::plan::Plan;
use aftershock_core::span::CallSpan;
use aftershock_core::trace::Trace;
use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::NewRound;
use crate::api::{
    ArbiterEntry, Conclude, CutVerdict, FaultVerdict, Finished, OracleVerdict, RoundId, RoundRecord, RoundSummary,
    TraceSet, Verdict,
};
use crate::hub::unix_seconds;

pub(super) type Result<T> = std::result::Result<T, Failure>;

/// Why a statement did not do what was asked.
#[derive(Debug)]
pub(super) enum Failure {
    Sql(rusqlite::Error),
    /// A row holds what no version of this program wrote.
    Row {
        what: &'static str,
        problem: String,
    },
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Failure::Sql(error)
    }
}

/// Why rounds that a start of the controller finds unfinished are.
const STOPPED: &str = "the controller stopped during the round";

pub(super) fn end_unfinished(connection: &Connection) -> rusqlite::Result<()> {
    connection
        .execute(
            "UPDATE rounds SET verdict = ?1, ended_early = ?2 WHERE verdict IS NULL",
            params![word(&Verdict::Inconclusive), STOPPED],
        )
        .map(drop)
}

pub(super) fn begin(connection: &mut Connection, round: &NewRound) -> Result<RoundId> {
    let transaction = connection.transaction()?;
    let body = json(&round.plan);
    transaction.prepare_cached("INSERT INTO plans (body) VALUES (?1) ON CONFLICT DO NOTHING")?.execute([&body])?;
    let faults = i64::try_from(round.plan.len()).unwrap_or(i64::MAX);
    transaction
        .prepare_cached(
            "INSERT INTO rounds (token, scenario, key, started, plan, faults)
             VALUES (?1, ?2, ?3, ?4, (SELECT id FROM plans WHERE body = ?5), ?6)",
        )?
        .execute(params![round.token.to_string(), round.scenario, round.key, round.started, body, faults])?;
    let id = transaction.last_insert_rowid();
    transaction.commit()?;
    Ok(RoundId(id))
}

pub(super) fn finish(connection: &mut Connection, id: RoundId, finished: &Finished) -> Result<()> {
    let transaction = connection.transaction()?;
    transaction
        .prepare_cached(
            "UPDATE rounds SET verdict = ?2, reasons = ?3, arbiter = ?4, ended = ?5, cuts = ?6, finished = 1 WHERE id = ?1",
        )?
        .execute(params![
            id.0,
            word(&finished.verdict),
            json(&finished.reasons),
            json(&finished.arbiter),
            unix_seconds(),
            json(&finished.cuts),
        ])?;
    for fault in &finished.faults {
        transaction
            .prepare_cached(
                "INSERT INTO verdicts (round, rule, verdict, reasons, injections, premature, multiple)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
            )?
            .execute(params![
                id.0,
                i64::try_from(fault.rule).unwrap_or(i64::MAX),
                word(&fault.verdict),
                json(&fault.reasons),
                fault.injections,
                fault.premature,
                fault.multiple,
            ])?;
    }
    for (execution, reason) in &finished.incomplete {
        transaction
            .prepare_cached("INSERT INTO incomplete (round, execution, reason) VALUES (?1, ?2, ?3)")?
            .execute(params![id.0, execution.to_string(), reason])?;
    }
    for (service, api, calls) in finished
        .unassociated
        .iter()
        .flat_map(|(service, apis)| apis.iter().map(move |(api, calls)| (service, api, calls)))
    {
        transaction
            .prepare_cached("INSERT INTO unassociated (round, service, api, calls) VALUES (?1, ?2, ?3, ?4)")?
            .execute(params![id.0, service.as_str(), api.to_string(), i64::try_from(*calls).unwrap_or(i64::MAX)])?;
    }
    for span in finished.traces.iter().flat_map(|trace| &trace.calls).flat_map(|call| call.spans()) {
        transaction
            .prepare_cached("INSERT INTO spans (round, body) VALUES (?1, ?2)")?
            .execute(params![id.0, json(span)])?;
    }
    Ok(transaction.commit()?)
}

pub(super) fn cut_short(connection: &Connection, id: RoundId, verdict: Verdict, reason: &str) -> Result<()> {
    connection
        .prepare_cached("UPDATE rounds SET verdict = ?2, ended_early = ?3, ended = ?4 WHERE id = ?1")?
        .execute(params![id.0, word(&verdict), reason, unix_seconds()])?;
    Ok(())
}

pub(super) fn conclude(connection: &Connection, id: RoundId, concluded: &Conclude) -> Result<bool> {
    let changed = connection
        .prepare_cached("UPDATE rounds SET oracle = ?2, concluded = ?3 WHERE id = ?1 AND verdict IS NOT NULL")?
        .execute(params![id.0, word(&concluded.oracle.found), json(concluded)])?;
    Ok(changed > 0)
}

pub(super) fn late(connection: &Connection, id: RoundId, execution: ExecutionId, spans: u64) -> Result<()> {
    connection
        .prepare_cached(
            "INSERT INTO late (round, execution, spans) VALUES (?1, ?2, ?3)
             ON CONFLICT DO UPDATE SET spans = spans + excluded.spans",
        )?
        .execute(params![id.0, execution.to_string(), i64::try_from(spans).unwrap_or(i64::MAX)])?;
    Ok(())
}

const SUMMARY: &str = "id, scenario, key, started, faults, verdict, oracle";

fn summary(row: &Row<'_>) -> Result<RoundSummary> {
    Ok(RoundSummary {
        id: RoundId(row.get(0)?),
        scenario: row.get(1)?,
        key: row.get(2)?,
        started: row.get(3)?,
        faults: count_of("count of faults", row.get(4)?)?,
        verdict: row.get::<_, Option<String>>(5)?.map(|word| of_word::<Verdict>("verdict", word)).transpose()?,
        oracle: row.get::<_, Option<String>>(6)?.map(|word| of_word::<OracleVerdict>("finding", word)).transpose()?,
    })
}

pub(super) fn summaries(connection: &Connection, scenario: Option<&str>, limit: u32) -> Result<Vec<RoundSummary>> {
    let mut statement = connection.prepare_cached(&format!(
        "SELECT {SUMMARY} FROM rounds WHERE ?1 IS NULL OR scenario = ?1 ORDER BY id DESC LIMIT ?2"
    ))?;
    let mut rows = statement.query(params![scenario, limit])?;
    let mut list = Vec::new();
    while let Some(row) = rows.next()? {
        list.push(summary(row)?);
    }
    Ok(list)
}

pub(super) fn record(connection: &mut Connection, id: RoundId) -> Result<Option<RoundRecord>> {
    let transaction = connection.transaction()?;
    let mut statement = transaction.prepare_cached(&format!(
        "SELECT {SUMMARY}, (SELECT body FROM plans WHERE plans.id = rounds.plan), finished, ended_early, concluded, reasons, arbiter, cuts
         FROM rounds WHERE id = ?1"
    ))?;
    let mut rows = statement.query([id.0])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    let summary = summary(row)?;
    let plan = of_json("plan", &row.get::<_, String>(7)?)?;
    let is_finished: bool = row.get(8)?;
    let ended_early = row.get(9)?;
    let concluded = row.get::<_, Option<String>>(10)?.map(|text| of_json("conclusion", &text)).transpose()?;
    let finished = match summary.verdict {
        Some(verdict) if is_finished => {
            let reasons = of_json("list of reasons", &row.get::<_, String>(11)?)?;
            let arbiter = of_json("record of the arbiter", &row.get::<_, String>(12)?)?;
            let cuts = of_json("list of cuts", &row.get::<_, String>(13)?)?;
            Some(finished(&transaction, id, verdict, reasons, arbiter, cuts)?)
        }
        _ => None,
    };
    Ok(Some(RoundRecord { summary, plan, finished, ended_early, concluded }))
}

fn finished(
    transaction: &Transaction<'_>,
    id: RoundId,
    verdict: Verdict,
    reasons: Vec<String>,
    arbiter: Vec<ArbiterEntry>,
    cuts: Vec<CutVerdict>,
) -> Result<Finished> {
    let faults = collect(
        transaction,
        "SELECT rule, verdict, reasons, injections, premature, multiple FROM verdicts WHERE round = ?1 ORDER BY rule",
        id,
        |row| {
            Ok(FaultVerdict {
                rule: count_of("rule", row.get(0)?)?,
                verdict: of_word("verdict", row.get(1)?)?,
                reasons: of_json("list of reasons", &row.get::<_, String>(2)?)?,
                injections: row.get(3)?,
                premature: row.get(4)?,
                multiple: row.get(5)?,
            })
        },
    )?;
    let counted = "SELECT service, api, calls FROM unassociated WHERE round = ?1";
    let counted = collect(transaction, counted, id, |row| {
        let service: Service = of_text("service", &row.get::<_, String>(0)?)?;
        Ok((service, of_text::<Api>("api", &row.get::<_, String>(1)?)?, row.get::<_, i64>(2)?.unsigned_abs()))
    })?;
    let mut unassociated: BTreeMap<Service, BTreeMap<Api, u64>> = BTreeMap::new();
    for (service, api, calls) in counted {
        unassociated.entry(service).or_default().insert(api, calls);
    }
    Ok(Finished {
        verdict,
        faults,
        cuts,
        reasons,
        traces: traces(transaction, id)?,
        incomplete: incomplete(transaction, id)?,
        unassociated,
        arbiter,
    })
}

fn traces(transaction: &Transaction<'_>, id: RoundId) -> Result<Vec<Trace>> {
    let spans = collect(transaction, "SELECT body FROM spans WHERE round = ?1 ORDER BY id", id, |row| {
        of_json::<CallSpan>("span", &row.get::<_, String>(0)?)
    })?;
    Ok(Trace::assemble(spans))
}

/// What was missing when the round was judged, and what came after it.
fn incomplete(transaction: &Transaction<'_>, id: RoundId) -> Result<BTreeMap<ExecutionId, String>> {
    let read = |sql, reason: fn(&Row<'_>) -> Result<String>| {
        collect(transaction, sql, id, |row| {
            Ok((of_text::<ExecutionId>("execution", &row.get::<_, String>(0)?)?, reason(row)?))
        })
    };
    let missing = read("SELECT execution, reason FROM incomplete WHERE round = ?1", |row| Ok(row.get(1)?))?;
    let late = read("SELECT execution, spans FROM late WHERE round = ?1", |row| {
        Ok(format!("late: {} span(s) came after the round was judged", row.get::<_, i64>(1)?))
    })?;
    let mut reasons: BTreeMap<ExecutionId, String> = missing.into_iter().collect();
    for (execution, reason) in late {
        reasons.entry(execution).and_modify(|known| *known = format!("{known}; {reason}")).or_insert(reason);
    }
    Ok(reasons)
}

pub(super) fn clean_traces(connection: &mut Connection, scenario: &str, recordings: u32) -> Result<Vec<Trace>> {
    let transaction = connection.transaction()?;
    let mut rounds: Vec<RoundId> = {
        let mut statement = transaction.prepare_cached(
            "SELECT id FROM rounds WHERE scenario = ?1 AND verdict = ?2 AND coalesce(oracle, ?3) = ?3
             ORDER BY id DESC LIMIT ?4",
        )?;
        let clean = params![scenario, word(&Verdict::Clean), word(&OracleVerdict::Held), recordings];
        let ids = statement.query_map(clean, |row| row.get(0).map(RoundId))?;
        ids.collect::<rusqlite::Result<_>>()?
    };
    rounds.reverse();
    let mut clean = Vec::new();
    for id in rounds {
        let incomplete = incomplete(&transaction, id)?;
        clean.extend(traces(&transaction, id)?.into_iter().filter(|trace| !incomplete.contains_key(&trace.execution)));
    }
    Ok(clean)
}

/// Store traces that were recorded elsewhere, each as a clean round of its own. Executions that are here already are left
/// out. Returns how many were stored.
pub(super) fn import(connection: &mut Connection, set: &TraceSet, from: &str) -> Result<u64> {
    let transaction = connection.transaction()?;
    let mut stored = 0;
    for trace in &set.traces {
        let here = "SELECT EXISTS (SELECT 1 FROM spans JOIN rounds ON rounds.id = spans.round
                    WHERE rounds.scenario = ?1 AND spans.body ->> 'execution' = ?2)";
        let execution = trace.execution.to_string();
        if transaction.prepare_cached(here)?.query_row(params![set.scenario, execution], |row| row.get(0))? {
            continue;
        }
        let began = trace.calls.iter().flat_map(|call| call.spans()).map(|span| span.request.unix_nanos).min();
        let began = i64::try_from(began.unwrap_or(0) / 1_000_000_000).unwrap_or(i64::MAX);
        let token = trace.calls.iter().flat_map(|call| call.spans()).map(|span| span.token).next().unwrap_or_default();
        let body = json(&Plan::default());
        transaction.prepare_cached("INSERT INTO plans (body) VALUES (?1) ON CONFLICT DO NOTHING")?.execute([&body])?;
        transaction
            .prepare_cached(
                "INSERT INTO rounds (token, scenario, key, started, plan, faults, verdict, finished, imported, ended)
                 VALUES (?1, ?2, ?3, ?4, (SELECT id FROM plans WHERE body = ?5), 0, ?6, 1, ?7, ?8)",
            )?
            .execute(params![
                token.to_string(),
                set.scenario,
                format!("imported-{execution}"),
                began,
                body,
                word(&Verdict::Clean),
                from,
                unix_seconds()
            ])?;
        let round = transaction.last_insert_rowid();
        for span in trace.calls.iter().flat_map(|call| call.spans()) {
            transaction
                .prepare_cached("INSERT INTO spans (round, body) VALUES (?1, ?2)")?
                .execute(params![round, json(span)])?;
        }
        stored += 1;
    }
    transaction.commit()?;
    Ok(stored)
}

pub(super) fn count(connection: &Connection) -> Result<u64> {
    let count: Option<i64> = connection.query_row("SELECT count(*) FROM rounds", [], |row| row.get(0)).optional()?;
    Ok(count.unwrap_or(0).unsigned_abs())
}

fn collect<T>(
    transaction: &Transaction<'_>,
    sql: &str,
    id: RoundId,
    read: impl Fn(&Row<'_>) -> Result<T>,
) -> Result<Vec<T>> {
    let mut statement = transaction.prepare_cached(sql)?;
    let mut rows = statement.query([id.0])?;
    let mut list = Vec::new();
    while let Some(row) = rows.next()? {
        list.push(read(row)?);
    }
    Ok(list)
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("values of the API have text keys only")
}

pub(super) fn word(value: &impl Serialize) -> String {
    json(value).trim_matches('"').to_owned()
}

fn of_json<T: DeserializeOwned>(what: &'static str, text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(|error| Failure::Row { what, problem: error.to_string() })
}

fn of_word<T: DeserializeOwned>(what: &'static str, word: String) -> Result<T> {
    let value = serde_json::Value::String(word);
    serde_json::from_value(value).map_err(|error| Failure::Row { what, problem: error.to_string() })
}

fn of_text<T: std::str::FromStr<Err: std::fmt::Display>>(what: &'static str, text: &str) -> Result<T> {
    text.parse().map_err(|error: T::Err| Failure::Row { what, problem: error.to_string() })
}

fn count_of(what: &'static str, number: i64) -> Result<usize> {
    usize::try_from(number).map_err(|error| Failure::Row { what, problem: error.to_string() })
}
