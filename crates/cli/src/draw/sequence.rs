//! A round as a message sequence: one column a participant, one row a message, in the order of the execution's clock.

use std::collections::BTreeMap;

use aftershock_core::id::CallId;
use aftershock_core::name::Service;
use aftershock_core::plan::{Phase, Plan};
use aftershock_core::trace::{Call, Trace};

/// Most columns; services further away from the target are left out.
const COLUMNS: usize = 6;
/// Characters between two columns.
const GAP: usize = 24;
/// The name of the column of the client.
const CLIENT: &str = "client";

#[derive(Clone, Copy, PartialEq)]
enum Mark {
    Arrives,
    Lost,
    Made,
}

struct Row {
    call: CallId,
    clock: u64,
    from: String,
    to: String,
    label: String,
    mark: Mark,
    note: String,
}

/// Render one execution. `plan` tells on which side of its call an injection acted.
pub(crate) fn render(trace: &Trace, plan: &Plan) -> Vec<String> {
    let mut rows: Vec<Row> = trace.calls.iter().flat_map(|call| messages(call, plan)).collect();
    // A fault is decided after what its clock value stands for.
    rows.sort_by_key(|row| (row.clock, row.mark == Mark::Lost));
    let columns = columns(trace, &rows);
    rows.retain(|row| columns.contains_key(row.from.as_str()) && columns.contains_key(row.to.as_str()));
    let rows = join_repeats(join_round_trips(rows));
    let centers: Vec<usize> = (0..columns.len()).map(|i| i * GAP + GAP / 2 - 4).collect();
    let mut lines = vec![header(&columns, &centers)];
    lines.extend(rows.iter().map(|row| draw(row, &columns, &centers)));
    lines
}

/// Request and response of one call, as far as they left.
fn messages(call: &Call, plan: &Plan) -> Vec<Row> {
    let Some(span) = call.spans().next() else { return Vec::new() };
    let caller = call.caller.as_ref().map_or(CLIENT, Service::as_str).to_owned();
    let callee = call.api.service.to_string();
    let injection = call.spans().find_map(|span| Some((span, span.injection.as_ref()?)));
    let phase = injection.and_then(|(_, injection)| plan.faults.get(injection.rule)).map(|fault| fault.target.phase);
    let hit = |phase_here: Phase| injection.filter(|_| phase == Some(phase_here));
    let mut rows = Vec::new();
    let lost = hit(Phase::Request).is_some() && call.server.is_none();
    rows.push(Row {
        call: call.id,
        clock: span.request.clock,
        from: caller.clone(),
        to: callee.clone(),
        label: call.api.short().to_owned(),
        mark: if lost { Mark::Lost } else { Mark::Arrives },
        note: hit(Phase::Request).map(|(_, i)| note(i)).unwrap_or_default(),
    });
    let answered = call.server.as_ref().and_then(|server| server.response);
    match (span.response, hit(Phase::Response)) {
        (Some(at), injected) => rows.push(Row {
            call: call.id,
            clock: at.clock,
            from: callee,
            to: caller,
            label: super::ending(span),
            mark: if span.made { Mark::Made } else { Mark::Arrives },
            note: injected.map(|(_, i)| note(i)).unwrap_or_default(),
        }),
        (None, Some((_, injection))) => rows.push(Row {
            call: call.id,
            clock: injection.decided,
            from: callee,
            to: caller,
            label: call.server.as_ref().map(super::ending).unwrap_or_default(),
            mark: Mark::Lost,
            note: note(injection),
        }),
        (None, None) => {
            if let Some(at) = answered {
                rows.push(Row {
                    call: call.id,
                    clock: at.clock,
                    from: callee,
                    to: caller,
                    label: "too late".to_owned(),
                    mark: Mark::Lost,
                    note: String::new(),
                });
            }
        }
    }
    rows
}

fn note(injection: &aftershock_core::span::Injection) -> String {
    let held = if injection.held { "held, then " } else { "" };
    format!("⚡ {held}{}", injection.fault)
}

/// Which participants get a column, and where: those on the way to an injection are kept first, then by first message.
fn columns(trace: &Trace, rows: &[Row]) -> BTreeMap<String, usize> {
    let mut kept: Vec<String> = vec![CLIENT.to_owned()];
    let mut keep = |name: &str| {
        if kept.len() < COLUMNS && !kept.iter().any(|known| known == name) {
            kept.push(name.to_owned());
        }
    };
    for call in trace.calls.iter().filter(|call| call.spans().any(|span| span.injection.is_some())) {
        let mut above = call.parent;
        while let Some(parent) = above.and_then(|id| trace.call(id)) {
            keep(parent.api.service.as_str());
            above = parent.parent;
        }
        keep(call.api.service.as_str());
    }
    for row in rows {
        keep(&row.from);
        keep(&row.to);
    }
    let mut order: Vec<&String> = Vec::new();
    for name in rows.iter().flat_map(|row| [&row.from, &row.to]) {
        if kept.contains(name) && !order.contains(&name) {
            order.push(name);
        }
    }
    order.into_iter().enumerate().map(|(i, name)| (name.clone(), i)).collect()
}

/// A request directly followed by its own unremarkable answer becomes one row.
fn join_round_trips(rows: Vec<Row>) -> Vec<Row> {
    let mut joined: Vec<Row> = Vec::new();
    for row in rows {
        let unremarkable = |row: &Row| row.mark == Mark::Arrives && row.note.is_empty();
        match joined.last_mut() {
            Some(last) if last.call == row.call && unremarkable(last) && unremarkable(&row) => {
                last.label = format!("{} ⇄ {}", last.label, row.label);
            }
            _ => joined.push(row),
        }
    }
    joined
}

/// Equal round trips in a row become one with a count.
fn join_repeats(rows: Vec<Row>) -> Vec<Row> {
    let mut runs: Vec<(Row, usize)> = Vec::new();
    for row in rows {
        match runs.last_mut() {
            Some((last, times))
                if row.label.contains('⇄')
                    && (&last.from, &last.to, &last.label) == (&row.from, &row.to, &row.label) =>
            {
                *times += 1;
            }
            _ => runs.push((row, 1)),
        }
    }
    let counted = |(mut row, times): (Row, usize)| {
        if times > 1 {
            row.label = format!("{} ×{times}", row.label);
        }
        row
    };
    runs.into_iter().map(counted).collect()
}

fn header(columns: &BTreeMap<String, usize>, centers: &[usize]) -> String {
    let mut line = vec![' '; centers.last().map_or(0, |last| last + GAP)];
    for (name, i) in columns {
        let shown: Vec<char> = name.chars().take(GAP - 2).collect();
        let start = centers[*i].saturating_sub(shown.len() / 2);
        line.splice(start..start + shown.len(), shown);
    }
    line.into_iter().collect::<String>().trim_end().to_owned()
}

fn draw(row: &Row, columns: &BTreeMap<String, usize>, centers: &[usize]) -> String {
    let mut line = vec![' '; centers.last().map_or(0, |last| last + 1)];
    for center in centers {
        line[*center] = '│';
    }
    let (from, to) = (centers[columns[&row.from]], centers[columns[&row.to]]);
    let (left, right) = (from.min(to), from.max(to));
    if left < right {
        let stroke = if row.mark == Mark::Made { '╌' } else { '─' };
        line[left + 1..right].fill(stroke);
        let rightwards = from < to;
        let head = if rightwards { right - 1 } else { left + 1 };
        line[head] = match (row.mark, rightwards) {
            (Mark::Lost, _) => '✗',
            (_, true) => '▶',
            (_, false) => '◀',
        };
        let label: Vec<char> = format!(" {} ", row.label).chars().take(right - left - 3).collect();
        let start = left + 1 + (right - left - 1 - label.len()) / 2;
        line.splice(start..start + label.len(), label);
    }
    let text: String = line.into_iter().collect();
    if row.note.is_empty() { text } else { format!("{text}  {}", row.note) }
}
