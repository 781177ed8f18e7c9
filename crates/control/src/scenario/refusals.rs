//! Ways to write a scenario or a fault that cannot work: each is refused when the file is read, or checked against the
//! other, with its reason at its place.

use super::*;

const SCENARIO_FILE: &str = r#"apiVersion: aftershock.dev/v1alpha1
kind: Scenario
metadata: {name: shop}
spec:
  entry: [http://a:1, http://b:2]
  key: order-{random}
  ledgers: {payment: http://p:3}
  secrets: [PASS]
  variables: {user: "u-{key}", auth: "{user}:{env:PASS}"}
  cookies: true
  execution: sequence
  setup:
    - {name: login, http: {method: POST, path: /login, json: {user: "{user}"}}, extract: {token: {json_path: $.t, secret: true}}}
  requests:
    - name: place
      http: {method: POST, path: "/o?u={user}", headers: {x-t: "{token}"}, body: "{key}"}
      retry: {attempts: 2}
      extract: {order: {pointer: /id}}
    - {name: look, to: payment, http: {method: GET, path: "/o/{order}"}}
    - {name: call, grpc: {method: a.B/C, json: {id: "{order}"}, reflection: true}}
  teardown:
    - {name: logout, http: {method: POST, path: "/out/{order}"}}
  outcomes: [{api: stock GET /, ok: [404]}]
  stop: {error_rate: 10%, min_requests: 50}
  invariants:
    - {name: get, get: "{payment}/c?k={order}", json_path: $.n, equals: 1}
    - {name: run, command: {run: [check, "{order}"], env: {A: "{auth}"}, timeout: 5s, exit: 3}}
    - {name: lite, sql: {url: "sqlite:s.db", query: "select 1 where ?1 = 2", parameters: ["{order}"]}, equals: 1}
    - {name: pg, sql: {url: "postgres://u@h:5/d", password: "{env:PASS}", query: "select 1"}, equals: 1}
"#;

const COMMAND_FILE: &str = r#"apiVersion: aftershock.dev/v1alpha1
kind: Scenario
metadata: {name: run}
spec:
  entry: http://a:1
  secrets: [PASS]
  command:
    run: [k6, run, "{key}.js"]
    env: {TOKEN: "{env:PASS}"}
    expect: {exit: 0, body: [{matches: passed}]}
    extract: {order: {regex: "id=(.*)"}}
"#;

const TRAFFIC_FILE: &str = r#"apiVersion: aftershock.dev/v1alpha1
kind: Scenario
metadata: {name: live}
spec:
  entry: http://a:1
  traffic: {entry: shop, headers: {x-canary: "1"}, percentage: 5, for: 30s}
  invariants:
    - {name: up, get: http://a:1/up, equals: ok}
"#;

const FAULT_FILE: &str = r#"apiVersion: aftershock.dev/v1alpha1
kind: TemporalFault
metadata: {name: lost}
spec:
  scenario: shop
  faults:
    - target: {caller: shop, api: pay x.Pay/Charge, k: 1, phase: response, post_effect: true}
      fault: drop
      guard: {after: [{event: request-sent, api: "group:both", count: 2}]}
      hold: {deadline: 1s}
      max_injections: 3
  groups: {both: [a x.Y/Z, b x.Y/Z]}
  expect:
    oracle: violated
    violates: [get]
    requests: {place: {status: 500}}
    invariants: {also: [{name: more, get: "{payment}/s", equals: x}]}
"#;

/// What is replaced, by what, and what the complaint begins with.
type Case = (&'static str, &'static str, &'static str);

fn check(file: &str, read: impl Fn(&str) -> Result<(), Located>, cases: &[Case]) {
    read(file).unwrap_or_else(|error| panic!("{error}"));
    let mut wrong = Vec::new();
    for (from, to, expected) in cases {
        assert!(file.contains(from), "{from}");
        match read(&file.replacen(from, to, 1)) {
            Ok(()) => wrong.push(format!("{to:?} was accepted")),
            Err(error) => {
                let located = error.line.is_some() && !error.message.contains('\n');
                if !error.message.starts_with(expected) || !located {
                    wrong.push(format!("{to:?}\n  expected {expected}\n  found    {error}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn scenario(text: &str) -> Result<(), Located> {
    Scenario::parse("s.yaml", text).map(drop)
}

#[test]
fn no_scenario_that_cannot_work_is_accepted() {
    check(
        SCENARIO_FILE,
        scenario,
        &[
            ("[http://a:1, http://b:2]", "[]", "expected at least one base URL"),
            ("http://b:2]", "http://a:1]", "expected each entry once, found `http://a:1` again"),
            ("http://b:2]", "https://b:2]", "expected an `http://` URL"),
            ("[http://a:1, http://b:2]", "{a: b}", "expected a base URL, or a list of them"),
            (
                "key: order-{random}",
                "key: \"{user}-{n}\"",
                "unknown variable `{user}`, expected one of `{random}`, `{n}`",
            ),
            ("key: order-{random}", "key: order", "expected `{random}` or `{n}` in the key"),
            ("payment: http", "n: http", "expected a name of letters, digits, `-` and `_` other than `key`"),
            ("payment: http", "pay ment: http", "expected a name of letters, digits"),
            ("secrets: [PASS]", "secrets: [\"P A\"]", "expected the name of an environment variable, found \"P A\""),
            ("secrets: [PASS]", "secrets: [PAS]", "unknown variable `{env:PASS}`, expected one of"),
            ("secrets: [PASS]", "secretz: [PASS]", "unknown key `secretz`, expected one of"),
            ("user: \"u-{key}\"", "user: \"u-{kei}\"", "unknown variable `{kei}`"),
            ("user: \"u-{key}\"", "user: \"{auth}\"", "expected a value that does not speak of itself: `auth` does"),
            (
                "user: \"u-{key}\"",
                "payment: x, user: \"u\"",
                "expected a name that nothing else has, found `payment` again",
            ),
            ("user: \"u-{key}\"", "user: \"{token}\"", "unknown variable `{token}`"),
            ("cookies: true", "cookies: yes", "expected"),
            (
                "execution: sequence",
                "execution: sequense",
                "unknown value `sequense`, expected one of `each-request`, `sequence`; did you mean `sequence`?",
            ),
            ("name: login", "name: place", "expected each request's name once, found `place` again"),
            ("json: {user: \"{user}\"}", "json: {user: \"{token}\"}", "unknown variable `{token}`"),
            ("json: {user: \"{user}\"}", "json: {}, body: x", "expected either `body` or `json`, found both"),
            (
                "token: {json_path: $.t,",
                "token: {",
                "expected exactly one of `json_path`, `pointer`, `header`, `regex`, `cookie`, found none",
            ),
            (
                "token: {json_path: $.t,",
                "token: {json_path: $.t, header: x,",
                "expected exactly one of `json_path`, `pointer`",
            ),
            ("token: {json_path: $.t,", "token: {json_paht: $.t,", "unknown key `json_paht`, expected one of"),
            ("token: {json_path: $.t,", "token: {regex: \"(\",", "expected a regular expression"),
            ("token: {json_path: $.t,", "token: {header: \"a b\",", "expected the name of a header field"),
            ("token: {json_path", "user: {json_path", "expected a name that nothing else has, found `user` again"),
            ("token: {json_path", "\"to ken\": {json_path", "expected the name of a variable"),
            ("/o?u={user}", "/o?u={order}", "unknown variable `{order}`"),
            (
                "/o?u={user}",
                "/o?u={usr}",
                "unknown variable `{usr}`, expected one of `{key}`, `{random}`, `{n}`, `{payment}`, `{env:PASS}`, `{user}`, `{auth}`, `{token}`; did you mean `{user}`?",
            ),
            ("/o?u={user}", "/o?u={env:PASS}", "expected no secret in a path, found `{env:PASS}`"),
            ("/o?u={user}", "/o?u={auth}", "expected no secret in a path, found `{auth}`"),
            ("/o?u={user}", "/o?u={token}", "expected no secret in a path, found `{token}`"),
            ("/o?u={user}", "/o?u={env:TOKEN}", "unknown variable `{env:TOKEN}`"),
            ("/o?u={user}", "/a b", "expected a path of a URL"),
            ("x-t: \"{token}\"", "X-T: a, x-t: b", "expected each header field once, found `x-t` again"),
            ("x-t: \"{token}\"", "tracestate: a", "expected no `tracestate` here: the runner sets it"),
            ("x-t: \"{token}\"", "x-t: \"a\\nb\"", "expected a value of a header field"),
            ("attempts: 2", "attempts: 0", "expected at least one attempt"),
            ("order: {pointer: /id}", "order: {pointer: id}", "expected a JSON pointer such as `/id`"),
            (
                "to: payment",
                "to: paymnt",
                "unknown ledger `paymnt`, expected one of `payment`; did you mean `payment`?",
            ),
            (
                "reflection: true",
                "reflection: false",
                "expected `descriptors: FILE` or `reflection: true` beside `json`",
            ),
            (
                "reflection: true",
                "reflection: true, descriptors: a.binpb",
                "expected either `descriptors` or `reflection: true`, found both",
            ),
            ("json: {id: \"{order}\"}", "json: {id: \"{oder}\"}", "unknown variable `{oder}`"),
            (
                "json: {id: \"{order}\"}, reflection",
                "message: x, reflection",
                "expected `reflection` only beside `json`",
            ),
            (
                "json: {id: \"{order}\"}, reflection: true",
                "message: x, descriptors: f",
                "expected `descriptors` only beside `json`",
            ),
            (
                "json: {id: \"{order}\"}, reflection: true",
                "metadata: {}",
                "expected `message` or `json` for this call, found neither",
            ),
            (
                "json: {id: \"{order}\"}, r",
                "json: {}, message: x, r",
                "expected either `message` or `json` for this call, found both",
            ),
            ("method: a.B/C", "method: a.B", "expected `package.Service/Method`"),
            ("/out/{order}", "/out/{ordr}", "unknown variable `{ordr}`"),
            ("ok: [404]", "ok: []", "expected `ok`, `error` or `body` in the outcome"),
            ("ok: [404]}", "ok: [404], error: [404]}", "the status 404 is both"),
            ("ok: [404]}", "ok: [404]}, {api: stock GET /, ok: [1]}", "expected each Api's outcome once"),
            ("stock GET /,", "stock,", "expected"),
            ("10%", "10", "expected a percentage from 0% to 100%"),
            ("10%", "100%", "expected less than 100%"),
            ("min_requests: 50", "min_requests: 0", "expected at least one request"),
            ("get: \"{payment}/c", "get: \"{paiment}/c", "unknown variable `{paiment}`"),
            ("get: \"{payment}/c", "get: \"{payment}/{env:PASS}", "expected no secret in a URL"),
            ("get: \"{payment}/c", "when: after_attempt(1), get: \"{payment}/c", "unknown variable `{order}`"),
            (
                "get: \"{payment}/c",
                "when: after_attempt(1), request: plase, get: \"{payment}/c",
                "unknown request `plase`",
            ),
            (
                "json_path: $.n, equals: 1",
                "json_path: $.n",
                "expected exactly one of `equals`, `at_most`, `at_least`, `matches`, found none",
            ),
            ("get: \"{payment}/c?k={order}\", ", "", "expected exactly one of `get`, `command`, `sql`, found none"),
            (
                "{name: run, command",
                "{name: run, get: http://h, equals: 1, command",
                "expected exactly one of `get`, `command`, `sql`, found several",
            ),
            ("run: [check, \"{order}\"]", "run: []", "expected a program and its arguments under `run`"),
            ("run: [check, \"{order}\"]", "run: [check, \"{env:PASS}\"]", "expected no secret in an argument"),
            ("env: {A:", "env: {TRACESTATE:", "expected no `TRACESTATE` here: the runner sets it"),
            ("env: {A:", "env: {\"A=B\":", "expected the name of an environment variable"),
            ("timeout: 5s", "timeout: 0s", "expected a timeout above zero"),
            ("exit: 3", "exit: 300", "expected an exit code from 0 to 255, found 300"),
            ("sqlite:s.db", "sqlite:", "expected the path of a database file"),
            ("sqlite:s.db", "mysql://h/d", "expected `postgres://USER@HOST:PORT/DATABASE` or `sqlite:PATH`"),
            (
                "?1 = 2",
                "'{order}' = 2",
                "expected no variable in a query, found `{order}`: write `?1` and `parameters: [\"{order}\"]`",
            ),
            ("select 1 where ?1 = 2", " ; ", "expected a query, found nothing to ask"),
            ("parameters: [\"{order}\"]", "parameters: [\"{oder}\"]", "unknown variable `{oder}`"),
            ("u@h:5", "u:pw@h:5", "expected no password in the URL"),
            ("u@h:5", "h:5", "expected a URL such as `postgres://USER@HOST:PORT/DATABASE`"),
            ("h:5/d", "h:5/d?sslmode=require", "expected no `sslmode=require`"),
            ("password: \"{env:PASS}\"", "password: hunter2", "expected `password: \"{env:NAME}\"`"),
            ("password: \"{env:PASS}\"", "password: \"x{env:PASS}\"", "expected `password: \"{env:NAME}\"`"),
            ("query: \"select 1\"}", "queri: \"select 1\"}", "unknown key `queri`, expected one of"),
        ],
    );
}

#[test]
fn no_command_and_no_traffic_that_cannot_work_is_accepted() {
    check(
        COMMAND_FILE,
        scenario,
        &[
            ("command:\n", "commnad:\n", "unknown key `commnad`, expected one of"),
            ("run: [k6, run, \"{key}.js\"]", "run: [\"\"]", "expected a program and its arguments under `run`"),
            ("\"{key}.js\"", "\"{kee}.js\"", "unknown variable `{kee}`"),
            ("\"{key}.js\"", "\"{env:PASS}\"", "expected no secret in an argument"),
            ("TOKEN:", "AFTERSHOCK_KEY:", "expected no `AFTERSHOCK_KEY` here: the runner sets it"),
            ("{exit: 0,", "{status: 200,", "expected no `status` for a command"),
            ("{exit: 0,", "{exit: -1,", "expected an exit code from 0 to 255"),
            ("order: {regex: \"id=(.*)\"}", "order: {header: x}", "expected `json_path`, `pointer` or `regex`"),
            (
                "  command:\n",
                "  requests: []\n  command:\n",
                "expected one of `requests`, `command` and `traffic`, found several",
            ),
        ],
    );
    check(
        TRAFFIC_FILE,
        scenario,
        &[
            ("percentage: 5", "percentage: 0", "expected a percentage above 0"),
            ("percentage: 5", "percentage: 101", "expected a percentage above 0"),
            ("headers: {x-canary: \"1\"}, percentage: 5, ", "", "expected `headers` or a `percentage` below 100"),
            ("x-canary:", "\"x canary\":", "expected the name of a header field"),
            ("x-canary: \"1\"", "x-a: \"1\", X-A: \"2\"", "expected each header field once"),
            (", for: 30s", "", "expected the key `for`, it is missing here"),
            ("for: 30s", "for: 0s", "expected a time above zero"),
            ("for: 30s", "for: 30", "expected a duration with a unit"),
            (
                "  traffic: {",
                "  execution: sequence\n  traffic: {",
                "expected no `execution: sequence` beside `traffic`",
            ),
            (
                "  traffic: {entry: shop, headers: {x-canary: \"1\"}, percentage: 5, for: 30s}\n",
                "",
                "expected `requests`, `command` or `traffic`, found none",
            ),
            ("get: http", "when: after_attempt(1), get: http", "expected `when: after_round`: traffic has no attempts"),
        ],
    );
}

#[test]
fn no_fault_that_cannot_work_with_its_scenario_is_accepted() {
    let shop = Scenario::parse("s.yaml", SCENARIO_FILE).unwrap();
    let read = |text: &str| TemporalFault::parse("f.yaml", text).and_then(|fault| shop.check(&fault));
    check(
        FAULT_FILE,
        read,
        &[
            ("scenario: shop", "scenario: chop", "expected the scenario `shop`, found `chop`"),
            ("faults:\n", "fautls:\n", "unknown key `fautls`, expected one of"),
            ("fault: drop", "fault: dorp", "unknown"),
            ("k: 1", "k: 0", "expected"),
            ("phase: response", "phase: request", "expected `post_effect` only with `phase: response`"),
            ("event: request-sent", "event: request-send", "unknown value `request-send`"),
            ("group:both", "group:bothh", "unknown group `bothh`, expected one of `both`; did you mean `both`?"),
            ("count: 2", "count: 0", "expected a count from 1"),
            ("deadline: 1s", "deadline: 0s", "expected a deadline above zero"),
            ("max_injections: 3", "max_injections: 0", "expected a number from 1 or `unlimited`"),
            ("[a x.Y/Z, b x.Y/Z]", "[]", "expected at least one Api in the group `both`"),
            ("oracle: violated", "oracle: held", "expected `violates` only beside `oracle: violated`"),
            ("oracle: violated", "oracle: violatd", "unknown value `violatd`"),
            ("violates: [get]", "violates: [got]", "unknown invariant `got`, expected one of"),
            ("{place: {status: 500}}", "{palce: {status: 500}}", "unknown request `palce`"),
            ("{place: {status: 500}}", "{place: {exit: 1}}", "expected no `exit` code: only a command has one"),
            ("{place: {status: 500}}", "{place: {grpc_status: 1}}", "expected no `grpc_status` for an HTTP request"),
            ("get: \"{payment}/s\"", "get: \"{paymnt}/s\"", "unknown variable `{paymnt}`"),
            ("{name: more", "{name: pg", "expected each invariant's name once, found `pg` again"),
        ],
    );
}

#[test]
fn nothing_of_a_password_that_stands_in_a_file_is_repeated_in_a_message() {
    let text = SCENARIO_FILE.replace("u@h:5", "u:hunter2@h:notaport");
    let error = Scenario::parse("s.yaml", &text).unwrap_err();
    assert!(!error.message.contains("hunter2"), "{}", error.message);
}
