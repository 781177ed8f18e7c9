-- Plans are stored once, however many rounds were run under them.
CREATE TABLE plans (
    id   INTEGER PRIMARY KEY,
    body TEXT NOT NULL UNIQUE
) STRICT;

CREATE TABLE rounds (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    token       TEXT NOT NULL,
    scenario    TEXT NOT NULL,
    key         TEXT NOT NULL,
    started     INTEGER NOT NULL,
    plan        INTEGER NOT NULL REFERENCES plans (id),
    faults      INTEGER NOT NULL,
    -- NULL while it runs.
    verdict     TEXT,
    -- Whether spans, executions and verdicts of it are here; a round that was cut short has none.
    finished    INTEGER NOT NULL DEFAULT 0,
    ended_early TEXT,
    reasons     TEXT NOT NULL DEFAULT '[]',
    oracle      TEXT,
    concluded   TEXT
) STRICT;

CREATE INDEX rounds_by_scenario ON rounds (scenario, id);

CREATE TABLE verdicts (
    round      INTEGER NOT NULL REFERENCES rounds (id) ON DELETE CASCADE,
    rule       INTEGER NOT NULL,
    verdict    TEXT NOT NULL,
    reasons    TEXT NOT NULL,
    injections INTEGER NOT NULL,
    premature  INTEGER NOT NULL,
    multiple   INTEGER NOT NULL,
    PRIMARY KEY (round, rule)
) STRICT, WITHOUT ROWID;

CREATE TABLE incomplete (
    round     INTEGER NOT NULL REFERENCES rounds (id) ON DELETE CASCADE,
    execution TEXT NOT NULL,
    reason    TEXT NOT NULL,
    PRIMARY KEY (round, execution)
) STRICT, WITHOUT ROWID;

CREATE TABLE late (
    round     INTEGER NOT NULL REFERENCES rounds (id) ON DELETE CASCADE,
    execution TEXT NOT NULL,
    spans     INTEGER NOT NULL,
    PRIMARY KEY (round, execution)
) STRICT, WITHOUT ROWID;

CREATE TABLE unassociated (
    round   INTEGER NOT NULL REFERENCES rounds (id) ON DELETE CASCADE,
    service TEXT NOT NULL,
    api     TEXT NOT NULL,
    calls   INTEGER NOT NULL,
    PRIMARY KEY (round, service, api)
) STRICT, WITHOUT ROWID;

CREATE TABLE spans (
    id        INTEGER PRIMARY KEY,
    round     INTEGER NOT NULL REFERENCES rounds (id) ON DELETE CASCADE,
    body      TEXT NOT NULL
) STRICT;

CREATE INDEX spans_by_round ON spans (round);
