-- The catalog, version 1.
--
-- Frontiers and times are eight bytes, big endian, never NULL: they order as the numbers do, and the largest
-- is the empty frontier. Counters and milliseconds are integers. Ids and keys are their one spelling, and sort by
-- their bytes, whatever the database sorts by. Everything is made in the first schema of the search path.

-- One row: who the catalog is, and the counter that every write transaction raises.
CREATE TABLE catalog (
    one      BIGINT           NOT NULL PRIMARY KEY CHECK (one = 1),
    id       TEXT COLLATE "C" NOT NULL,
    revision BIGINT           NOT NULL CHECK (revision >= 0),
    created  BIGINT           NOT NULL
);

CREATE TABLE sinks (
    id             TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    name           TEXT COLLATE "C" NOT NULL,
    schema         BYTEA            NOT NULL,
    fingerprint    BYTEA            NOT NULL CHECK (length(fingerprint) = 32),
    as_of          BYTEA            NOT NULL CHECK (length(as_of) = 8),
    up_to          BYTEA            NOT NULL CHECK (length(up_to) = 8),
    seals          BIGINT           NOT NULL CHECK (seals IN (0, 1)),
    retention_ms   BIGINT,
    absent_hold_ms BIGINT,
    declared       BIGINT           NOT NULL,
    dropped        BIGINT
);

-- A dropped sink frees its name.
CREATE UNIQUE INDEX sinks_live_name ON sinks (name) WHERE dropped IS NULL;

-- The head row of each chain: the fence of every write to the sink. Every commit updates it, so its pages keep room.
CREATE TABLE chains (
    sink           TEXT COLLATE "C"  NOT NULL PRIMARY KEY REFERENCES sinks (id),
    upper          BYTEA             NOT NULL CHECK (length(upper) = 8),
    fence          BIGINT            NOT NULL CHECK (fence >= 0),
    next_seq       BIGINT            NOT NULL CHECK (next_seq >= 1),
    status         TEXT COLLATE "C"  NOT NULL CHECK (status IN ('open', 'complete', 'poisoned', 'dropped')),
    poisoned_at    BYTEA             CHECK (length(poisoned_at) = 8),
    poison_message TEXT COLLATE "C",
    released       BYTEA             NOT NULL CHECK (length(released) = 8),
    expired        BYTEA             NOT NULL CHECK (length(expired) = 8),
    revision       BIGINT            NOT NULL,
    commit_id      TEXT COLLATE "C"
) WITH (fillfactor = 50);

-- Incarnations stay for ever: a key in the store can always be judged.
-- `last_*` is the last offer that was resolved by a write, `commit_*` the transaction that did it.
CREATE TABLE incarnations (
    id              TEXT COLLATE "C"  NOT NULL PRIMARY KEY,
    sink            TEXT COLLATE "C"  NOT NULL REFERENCES sinks (id),
    replica         TEXT COLLATE "C"  NOT NULL,
    launch          TEXT COLLATE "C"  NOT NULL,
    as_of           BYTEA             NOT NULL CHECK (length(as_of) = 8),
    resolved        BYTEA             NOT NULL CHECK (length(resolved) = 8),
    closed          TEXT COLLATE "C",
    last_lower      BYTEA             CHECK (length(last_lower) = 8),
    last_upper      BYTEA             CHECK (length(last_upper) = 8),
    last_outcome    TEXT COLLATE "C"  CHECK (last_outcome IN ('accepted', 'trimmed', 'dropped')),
    last_from       BYTEA             CHECK (length(last_from) = 8),
    opened          BIGINT            NOT NULL,
    opened_revision BIGINT            NOT NULL,
    lease_until     BIGINT            NOT NULL,
    commit_id       TEXT COLLATE "C",
    commit_revision BIGINT,
    commit_seq      BIGINT,
    commit_upper    BYTEA             CHECK (length(commit_upper) = 8),
    commit_fence    BIGINT,
    UNIQUE (sink, launch)
);

-- Batches in chain order. Linked rows are gapless: each begins where the one before it extends to.
-- `kind`: `updates` has content; `empty` never had any; `rest` is the empty end of a released batch.
-- Rows that are not linked wait for their keys to leave the deletion queue.
CREATE TABLE batches (
    sink          TEXT COLLATE "C" NOT NULL REFERENCES sinks (id),
    seq           BIGINT           NOT NULL,
    id            TEXT COLLATE "C" NOT NULL UNIQUE,
    lower         BYTEA            NOT NULL CHECK (length(lower) = 8),
    upper         BYTEA            NOT NULL CHECK (length(upper) = 8),
    extent        BYTEA            NOT NULL CHECK (length(extent) = 8),
    offered_lower BYTEA            NOT NULL CHECK (length(offered_lower) = 8),
    offered_upper BYTEA            NOT NULL CHECK (length(offered_upper) = 8),
    incarnation   TEXT COLLATE "C" NOT NULL REFERENCES incarnations (id),
    facts         BYTEA            NOT NULL,
    kind          TEXT COLLATE "C" NOT NULL CHECK (kind IN ('updates', 'empty', 'rest')),
    linked        BIGINT           NOT NULL CHECK (linked IN (0, 1)),
    accepted      BIGINT           NOT NULL,
    PRIMARY KEY (sink, seq),
    CHECK (lower < upper AND upper <= extent)
);

CREATE INDEX batches_by_extent ON batches (sink, extent) WHERE linked = 1;
CREATE INDEX batches_by_upper ON batches (sink, upper) WHERE linked = 1;

-- Parts that linked batches reference; a row here is what keeps a key alive.
CREATE TABLE parts (
    key        TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    sink       TEXT COLLATE "C" NOT NULL,
    seq        BIGINT           NOT NULL,
    place      BIGINT           NOT NULL,
    descriptor BYTEA            NOT NULL,
    UNIQUE (sink, seq, place),
    FOREIGN KEY (sink, seq) REFERENCES batches (sink, seq)
);

CREATE TABLE inline_runs (
    sink      TEXT COLLATE "C" NOT NULL,
    seq       BIGINT           NOT NULL,
    place     BIGINT           NOT NULL,
    run_group BIGINT           NOT NULL,
    payload   BYTEA            NOT NULL,
    digest    BYTEA            NOT NULL CHECK (length(digest) = 32),
    facts     BYTEA            NOT NULL,
    schema    BYTEA            NOT NULL CHECK (length(schema) = 32),
    PRIMARY KEY (sink, seq, place),
    FOREIGN KEY (sink, seq) REFERENCES batches (sink, seq)
);

CREATE TABLE consumers (
    sink    TEXT COLLATE "C" NOT NULL REFERENCES sinks (id),
    name    TEXT COLLATE "C" NOT NULL,
    acked   BYTEA            NOT NULL CHECK (length(acked) = 8),
    session TEXT COLLATE "C" NOT NULL,
    seen    BIGINT           NOT NULL,
    PRIMARY KEY (sink, name)
);

-- The deletion queue. `seq` is the released batch whose row waits for the key.
CREATE TABLE deletions (
    key         TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    sink        TEXT COLLATE "C" NOT NULL REFERENCES sinks (id),
    incarnation TEXT COLLATE "C" NOT NULL,
    seq         BIGINT,
    reason      TEXT COLLATE "C" NOT NULL,
    queued      BIGINT           NOT NULL,
    due         BIGINT           NOT NULL,
    attempts    BIGINT           NOT NULL
);

CREATE INDEX deletions_due ON deletions (due);
CREATE INDEX deletions_batch ON deletions (sink, seq);

-- What happened, for people; the newest 100,000 rows.
CREATE TABLE history (
    n           BIGINT            NOT NULL GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at          BIGINT            NOT NULL,
    sink        TEXT COLLATE "C"  NOT NULL,
    incarnation TEXT COLLATE "C",
    key         TEXT COLLATE "C",
    event       TEXT COLLATE "C"  NOT NULL,
    detail      TEXT COLLATE "C"  NOT NULL
);
