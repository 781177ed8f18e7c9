//! The call tree of one execution.

use aftershock_core::id::CallId;
use aftershock_core::trace::{Call, Trace};

/// Render `trace` as an indented tree; runs of equal leaves under one parent become one line with a count.
pub(crate) fn render(trace: &Trace) -> Vec<String> {
    let mut lines = Vec::new();
    let roots: Vec<&Call> = trace.roots().collect();
    for root in &roots {
        lines.push(line(root, 1));
        children(trace, root.id, "", &mut lines);
    }
    lines
}

fn children(trace: &Trace, parent: CallId, indent: &str, lines: &mut Vec<String>) {
    let calls: Vec<&Call> = trace.children(Some(parent)).collect();
    let mut runs: Vec<(&Call, usize)> = Vec::new();
    for call in calls {
        let leaf = trace.children(Some(call.id)).next().is_none();
        match runs.last_mut() {
            Some((first, n)) if leaf && first.api == call.api && label(first) == label(call) => *n += 1,
            _ => runs.push((call, 1)),
        }
    }
    let last = runs.len().saturating_sub(1);
    for (i, (call, times)) in runs.into_iter().enumerate() {
        let (branch, below) = if i == last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        lines.push(format!("{indent}{branch}{}", line(call, times)));
        children(trace, call.id, &format!("{indent}{below}"), lines);
    }
}

fn label(call: &Call) -> String {
    call.spans().next().map(super::ending).unwrap_or_default()
}

fn line(call: &Call, times: usize) -> String {
    let span = call.spans().next();
    let mut text = format!("{} {}", call.api.service, call.api.short());
    if times > 1 {
        text.push_str(&format!(" ×{times}"));
    }
    text.push_str(&format!("  {}", label(call)));
    if let Some(response) = span.and_then(|span| Some((span.request, span.response?)))
        && times == 1
    {
        let nanos = response.1.unix_nanos.saturating_sub(response.0.unix_nanos);
        text.push_str(&format!("  {:.1} ms", nanos as f64 / 1e6));
    }
    if call.client.is_none() && call.parent.is_some() {
        text.push_str("  (only the callee saw it)");
    }
    text
}
