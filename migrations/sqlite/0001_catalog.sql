-- The catalog, version 1.
--
-- Frontiers and times are eight bytes, big endian, never NULL: they order as the numbers do, and the largest
-- is the empty frontier. Counters and milliseconds are integers. Ids and keys are their one spelling.

-- One row: who the catalog is, and the counter that every write transaction raises.
CREATE TABLE catalog (
    one      INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    id       TEXT    NOT NULL,
    revision INTEGER NOT NULL CHECK (revision >= 0),
    created  INTEGER NOT NULL
) STRICT;

CREATE TABLE sinks (
    id             TEXT    NOT NULL PRIMARY KEY,
    name           TEXT    NOT NULL,
    schema         BLOB    NOT NULL,
    fingerprint    BLOB    NOT NULL CHECK (length(fingerprint) = 32),
    as_of          BLOB    NOT NULL CHECK (length(as_of) = 8),
    up_to          BLOB    NOT NULL CHECK (length(up_to) = 8),
    seals          INTEGER NOT NULL CHECK (seals IN (0, 1)),
    retention_ms   INTEGER,
    absent_hold_ms INTEGER,
    declared       INTEGER NOT NULL,
    dropped        INTEGER
) STRICT;

-- A dropped sink frees its name.
CREATE UNIQUE INDEX sinks_live_name ON sinks (name) WHERE dropped IS NULL;

-- The head row of each chain: the fence of every write to the sink.
CREATE TABLE chains (
    sink           TEXT    NOT NULL PRIMARY KEY REFERENCES sinks (id),
    upper          BLOB    NOT NULL CHECK (length(upper) = 8),
    fence          INTEGER NOT NULL CHECK (fence >= 0),
    next_seq       INTEGER NOT NULL CHECK (next_seq >= 1),
    status         TEXT    NOT NULL CHECK (status IN ('open', 'complete', 'poisoned', 'dropped')),
    poisoned_at    BLOB    CHECK (length(poisoned_at) = 8),
    poison_message TEXT,
    released       BLOB    NOT NULL CHECK (length(released) = 8),
    expired        BLOB    NOT NULL CHECK (length(expired) = 8),
    revision       INTEGER NOT NULL,
    commit_id      TEXT
) STRICT;

-- Incarnations stay for ever: a key in the store can always be judged.
-- `last_*` is the last offer that was resolved by a write, `commit_*` the transaction that did it.
CREATE TABLE incarnations (
    id              TEXT    NOT NULL PRIMARY KEY,
    sink            TEXT    NOT NULL REFERENCES sinks (id),
    replica         TEXT    NOT NULL,
    launch          TEXT    NOT NULL,
    as_of           BLOB    NOT NULL CHECK (length(as_of) = 8),
    resolved        BLOB    NOT NULL CHECK (length(resolved) = 8),
    closed          TEXT,
    last_lower      BLOB    CHECK (length(last_lower) = 8),
    last_upper      BLOB    CHECK (length(last_upper) = 8),
    last_outcome    TEXT    CHECK (last_outcome IN ('accepted', 'trimmed', 'dropped')),
    last_from       BLOB    CHECK (length(last_from) = 8),
    opened          INTEGER NOT NULL,
    opened_revision INTEGER NOT NULL,
    lease_until     INTEGER NOT NULL,
    commit_id       TEXT,
    commit_revision INTEGER,
    commit_seq      INTEGER,
    commit_upper    BLOB    CHECK (length(commit_upper) = 8),
    commit_fence    INTEGER,
    UNIQUE (sink, launch)
) STRICT;

-- Batches in chain order. Linked rows are gapless: each begins where the one before it extends to.
-- `kind`: `updates` has content; `empty` never had any; `rest` is the empty end of a released batch.
-- Rows that are not linked wait for their keys to leave the deletion queue.
CREATE TABLE batches (
    sink          TEXT    NOT NULL REFERENCES sinks (id),
    seq           INTEGER NOT NULL,
    id            TEXT    NOT NULL UNIQUE,
    lower         BLOB    NOT NULL CHECK (length(lower) = 8),
    upper         BLOB    NOT NULL CHECK (length(upper) = 8),
    extent        BLOB    NOT NULL CHECK (length(extent) = 8),
    offered_lower BLOB    NOT NULL CHECK (length(offered_lower) = 8),
    offered_upper BLOB    NOT NULL CHECK (length(offered_upper) = 8),
    incarnation   TEXT    NOT NULL REFERENCES incarnations (id),
    facts         BLOB    NOT NULL,
    kind          TEXT    NOT NULL CHECK (kind IN ('updates', 'empty', 'rest')),
    linked        INTEGER NOT NULL CHECK (linked IN (0, 1)),
    accepted      INTEGER NOT NULL,
    PRIMARY KEY (sink, seq),
    CHECK (lower < upper AND upper <= extent)
) STRICT;

CREATE INDEX batches_by_extent ON batches (sink, extent) WHERE linked = 1;
CREATE INDEX batches_by_upper ON batches (sink, upper) WHERE linked = 1;

-- Parts that linked batches reference; a row here is what keeps a key alive.
CREATE TABLE parts (
    key        TEXT    NOT NULL PRIMARY KEY,
    sink       TEXT    NOT NULL,
    seq        INTEGER NOT NULL,
    place      INTEGER NOT NULL,
    descriptor BLOB    NOT NULL,
    UNIQUE (sink, seq, place),
    FOREIGN KEY (sink, seq) REFERENCES batches (sink, seq)
) STRICT;

CREATE TABLE inline_runs (
    sink      TEXT    NOT NULL,
    seq       INTEGER NOT NULL,
    place     INTEGER NOT NULL,
    run_group INTEGER NOT NULL,
    payload   BLOB    NOT NULL,
    digest    BLOB    NOT NULL CHECK (length(digest) = 32),
    facts     BLOB    NOT NULL,
    schema    BLOB    NOT NULL CHECK (length(schema) = 32),
    PRIMARY KEY (sink, seq, place),
    FOREIGN KEY (sink, seq) REFERENCES batches (sink, seq)
) STRICT;

CREATE TABLE consumers (
    sink    TEXT    NOT NULL REFERENCES sinks (id),
    name    TEXT    NOT NULL,
    acked   BLOB    NOT NULL CHECK (length(acked) = 8),
    session TEXT    NOT NULL,
    seen    INTEGER NOT NULL,
    PRIMARY KEY (sink, name)
) STRICT;

-- The deletion queue. `seq` is the released batch whose row waits for the key.
CREATE TABLE deletions (
    key         TEXT    NOT NULL PRIMARY KEY,
    sink        TEXT    NOT NULL REFERENCES sinks (id),
    incarnation TEXT    NOT NULL,
    seq         INTEGER,
    reason      TEXT    NOT NULL,
    queued      INTEGER NOT NULL,
    due         INTEGER NOT NULL,
    attempts    INTEGER NOT NULL
) STRICT;

CREATE INDEX deletions_due ON deletions (due);
CREATE INDEX deletions_batch ON deletions (sink, seq);

-- What happened, for people; the newest 100,000 rows.
CREATE TABLE history (
    n           INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    at          INTEGER NOT NULL,
    sink        TEXT    NOT NULL,
    incarnation TEXT,
    key         TEXT,
    event       TEXT    NOT NULL,
    detail      TEXT    NOT NULL
) STRICT;
