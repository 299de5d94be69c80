-- The tables of earlier versions: each step from the version before, as it was shipped.
-- version 1
CREATE TABLE IF NOT EXISTS session (
    id INTEGER PRIMARY KEY,
    key TEXT NOT NULL UNIQUE,
    agent TEXT NOT NULL,
    channel TEXT NOT NULL,
    account TEXT NOT NULL,
    peer TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    state TEXT NOT NULL DEFAULT 'active' CHECK (state IN ('active', 'closed')),
    message_count INTEGER NOT NULL DEFAULT 0,
    input_tokens INTEGER NOT NULL DEFAULT 0,
    output_tokens INTEGER NOT NULL DEFAULT 0,
    cost_usd REAL,
    last_seq INTEGER NOT NULL DEFAULT 0,
    head INTEGER
);
CREATE INDEX IF NOT EXISTS session_by_time ON session (updated_at);
CREATE INDEX IF NOT EXISTS session_by_agent ON session (agent, updated_at);
CREATE INDEX IF NOT EXISTS session_by_account ON session (channel, account, updated_at);
CREATE TABLE IF NOT EXISTS run (
    id INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL UNIQUE,
    message_id TEXT NOT NULL,
    session INTEGER NOT NULL REFERENCES session (id),
    seq INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('queued', 'running', 'done', 'dead')),
    attempts INTEGER NOT NULL,
    forgiven INTEGER NOT NULL DEFAULT 0,
    accepted_at INTEGER NOT NULL,
    finished_at INTEGER,
    matched_by TEXT NOT NULL,
    channel TEXT NOT NULL,
    account TEXT NOT NULL,
    platform_id TEXT,
    digest TEXT NOT NULL,
    sender TEXT,
    context_id TEXT,
    token_limit INTEGER,
    outcome TEXT,
    content TEXT NOT NULL,
    summary TEXT NOT NULL DEFAULT '',
    log BLOB
);
CREATE UNIQUE INDEX IF NOT EXISTS run_once ON run (platform_id, channel, account)
    WHERE platform_id IS NOT NULL;
CREATE UNIQUE INDEX IF NOT EXISTS run_in_session ON run (session, seq);
CREATE INDEX IF NOT EXISTS run_unfinished ON run (id) WHERE finished_at IS NULL;
CREATE INDEX IF NOT EXISTS run_with_log ON run (finished_at) WHERE log IS NOT NULL;
CREATE TABLE IF NOT EXISTS node (
    place INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    parent INTEGER,
    run_id TEXT NOT NULL,
    role TEXT NOT NULL CHECK (role IN ('user', 'assistant', 'tool')),
    text TEXT NOT NULL,
    packed BLOB,
    status TEXT NOT NULL CHECK (status IN ('complete', 'partial', 'cancelled', 'error')),
    tokens INTEGER NOT NULL,
    model TEXT,
    created_at INTEGER NOT NULL,
    label TEXT
);
CREATE INDEX IF NOT EXISTS node_by_label ON node (label, place) WHERE label IS NOT NULL;
CREATE TABLE IF NOT EXISTS journal (
    id INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL,
    step INTEGER NOT NULL,
    kind TEXT NOT NULL,
    payload TEXT NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS journal_once ON journal (run_id, step, kind);
CREATE TABLE IF NOT EXISTS delivery (
    id INTEGER PRIMARY KEY,
    delivery_id TEXT NOT NULL UNIQUE,
    run_id TEXT NOT NULL,
    session INTEGER NOT NULL REFERENCES session (id),
    channel TEXT NOT NULL,
    account TEXT NOT NULL,
    peer TEXT NOT NULL,
    thread TEXT,
    text TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('pending', 'sending', 'sent', 'unknown', 'failed')),
    attempts INTEGER NOT NULL DEFAULT 0,
    due_at INTEGER NOT NULL,
    receipt TEXT,
    why TEXT
);
CREATE INDEX IF NOT EXISTS delivery_open ON delivery (session, id)
    WHERE state IN ('pending', 'sending');
CREATE INDEX IF NOT EXISTS delivery_due ON delivery (due_at) WHERE state = 'pending';
CREATE TABLE IF NOT EXISTS pulse (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    commits INTEGER NOT NULL,
    probed_at INTEGER NOT NULL
);
INSERT OR IGNORE INTO pulse VALUES (1, 0, 0);
-- version 2
CREATE TABLE IF NOT EXISTS plugin_space (
    id INTEGER PRIMARY KEY,
    plugin BLOB NOT NULL,
    namespace BLOB NOT NULL,
    owner BLOB NOT NULL,
    keys INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    UNIQUE (plugin, namespace, owner)
);
CREATE TABLE IF NOT EXISTS plugin_value (
    space INTEGER NOT NULL REFERENCES plugin_space (id),
    key BLOB NOT NULL,
    value BLOB NOT NULL,
    UNIQUE (space, key)
);
-- version 3
CREATE TABLE IF NOT EXISTS settings (
    user TEXT PRIMARY KEY,
    json TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS rule_state (
    session INTEGER PRIMARY KEY REFERENCES session (id),
    json TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS notice (
    id INTEGER PRIMARY KEY,
    agent TEXT NOT NULL,
    person TEXT NOT NULL,
    session INTEGER NOT NULL REFERENCES session (id),
    claimed_by TEXT,
    expires_at INTEGER,
    json TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS notice_for ON notice (agent, person, id);
CREATE INDEX IF NOT EXISTS notice_claimed ON notice (claimed_by) WHERE claimed_by IS NOT NULL;
ALTER TABLE run RENAME COLUMN token_limit TO limits;
UPDATE run SET limits = '{"token_budget":' || limits || '}' WHERE limits IS NOT NULL;
ALTER TABLE run ADD COLUMN tape BLOB;
-- version 4
CREATE TABLE IF NOT EXISTS spend (
    kind TEXT NOT NULL CHECK (kind IN ('session', 'agent', 'day', 'month', 'model')),
    name TEXT NOT NULL,
    calls INTEGER NOT NULL DEFAULT 0,
    priced INTEGER NOT NULL DEFAULT 0,
    input_tokens INTEGER NOT NULL DEFAULT 0,
    output_tokens INTEGER NOT NULL DEFAULT 0,
    nano_usd INTEGER NOT NULL DEFAULT 0,
    since INTEGER NOT NULL,
    warned TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (kind, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS reservation (
    id TEXT PRIMARY KEY,
    session TEXT NOT NULL,
    run_id TEXT NOT NULL,
    provider TEXT NOT NULL,
    model TEXT NOT NULL,
    at INTEGER NOT NULL,
    day TEXT NOT NULL,
    input_tokens INTEGER NOT NULL,
    held_tokens INTEGER NOT NULL,
    held_nano_usd INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS series (
    id INTEGER PRIMARY KEY,
    agent TEXT NOT NULL,
    provider TEXT NOT NULL,
    model TEXT NOT NULL,
    UNIQUE (agent, provider, model)
);
CREATE TABLE IF NOT EXISTS token_record (
    seq INTEGER PRIMARY KEY,
    id TEXT NOT NULL,
    at INTEGER NOT NULL,
    series INTEGER NOT NULL REFERENCES series (id),
    session TEXT NOT NULL,
    run_id TEXT NOT NULL,
    day TEXT NOT NULL,
    outcome TEXT NOT NULL CHECK (outcome IN ('answered', 'failed', 'broken', 'lost')),
    input_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL,
    reasoning_tokens INTEGER NOT NULL,
    nano_usd INTEGER NOT NULL,
    pricing TEXT NOT NULL CHECK (pricing IN ('provider', 'config', 'table', 'unpriced')),
    estimated INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS token_record_by_series ON token_record (series, at);
CREATE INDEX IF NOT EXISTS token_record_by_session ON token_record (session, series, at);
CREATE INDEX IF NOT EXISTS token_record_by_time ON token_record (at);
CREATE TABLE IF NOT EXISTS audit (
    seq INTEGER PRIMARY KEY,
    at INTEGER NOT NULL,
    kind TEXT NOT NULL,
    actor TEXT NOT NULL,
    detail TEXT NOT NULL,
    hash TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS audit_by_kind ON audit (kind, seq);
CREATE TRIGGER IF NOT EXISTS audit_is_not_changed BEFORE UPDATE ON audit
BEGIN SELECT RAISE(ABORT, 'the audit is only appended to'); END;
CREATE TRIGGER IF NOT EXISTS audit_is_not_deleted BEFORE DELETE ON audit
BEGIN SELECT RAISE(ABORT, 'the audit is only appended to'); END;
-- version 5
CREATE TABLE IF NOT EXISTS fact_group (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    kind TEXT NOT NULL CHECK (kind IN ('scope', 'session')),
    name TEXT NOT NULL,
    last INTEGER NOT NULL DEFAULT 0,
    UNIQUE (kind, name)
);
CREATE TABLE IF NOT EXISTS fact_topic (
    id INTEGER PRIMARY KEY,
    scope INTEGER NOT NULL REFERENCES fact_group (id),
    subject TEXT NOT NULL,
    predicate TEXT NOT NULL,
    UNIQUE (scope, subject, predicate)
);
CREATE INDEX IF NOT EXISTS fact_topic_by_predicate ON fact_topic (scope, predicate);
CREATE TABLE IF NOT EXISTS fact (
    place INTEGER PRIMARY KEY,
    room_place INTEGER UNIQUE,
    id TEXT NOT NULL,
    scope INTEGER NOT NULL REFERENCES fact_group (id),
    session INTEGER NOT NULL REFERENCES fact_group (id),
    topic INTEGER NOT NULL REFERENCES fact_topic (id),
    about TEXT NOT NULL,
    form TEXT NOT NULL,
    entity_type TEXT NOT NULL CHECK (entity_type IN ('fact', 'relationship', 'attribute')),
    subject TEXT NOT NULL,
    predicate TEXT NOT NULL,
    object TEXT NOT NULL,
    functional INTEGER NOT NULL,
    confidence REAL NOT NULL CHECK (confidence BETWEEN 0 AND 1),
    learned_at INTEGER NOT NULL,
    valid_from INTEGER NOT NULL,
    valid_to INTEGER,
    superseded_at INTEGER,
    superseded_by TEXT
);
CREATE INDEX IF NOT EXISTS fact_by_topic ON fact (topic, functional, form);
CREATE INDEX IF NOT EXISTS fact_by_session ON fact (session, valid_from);
CREATE INDEX IF NOT EXISTS fact_by_learning ON fact (scope, learned_at);
CREATE INDEX IF NOT EXISTS fact_current ON fact (scope, valid_from) WHERE superseded_at IS NULL;
CREATE INDEX IF NOT EXISTS fact_by_object ON fact (scope, form, valid_from)
    WHERE superseded_at IS NULL;
CREATE INDEX IF NOT EXISTS fact_by_subject ON fact (scope, about, valid_from)
    WHERE superseded_at IS NULL;
CREATE INDEX IF NOT EXISTS fact_by_object_there ON fact (session, form, valid_from)
    WHERE superseded_at IS NULL;
CREATE INDEX IF NOT EXISTS fact_by_subject_there ON fact (session, about, valid_from)
    WHERE superseded_at IS NULL;
CREATE INDEX IF NOT EXISTS fact_superseded ON fact (superseded_by)
    WHERE superseded_by IS NOT NULL;
CREATE UNIQUE INDEX IF NOT EXISTS fact_one_current ON fact (topic)
    WHERE superseded_at IS NULL AND functional;
CREATE TABLE IF NOT EXISTS fact_claim (
    seq INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    fact INTEGER NOT NULL REFERENCES fact (place),
    topic INTEGER NOT NULL REFERENCES fact_topic (id),
    session INTEGER NOT NULL REFERENCES fact_group (id),
    object TEXT NOT NULL,
    functional INTEGER NOT NULL,
    confidence REAL NOT NULL,
    learned_at INTEGER NOT NULL,
    since INTEGER NOT NULL,
    said_at INTEGER NOT NULL,
    until INTEGER,
    message_id TEXT,
    quote TEXT,
    said_by TEXT
);
CREATE INDEX IF NOT EXISTS fact_claim_by_fact ON fact_claim (fact, seq);
CREATE INDEX IF NOT EXISTS fact_claim_by_time ON fact_claim (topic, since, said_at);
CREATE INDEX IF NOT EXISTS fact_claim_by_session ON fact_claim (session);
CREATE INDEX IF NOT EXISTS fact_claim_ended ON fact_claim (topic) WHERE until IS NOT NULL;
CREATE INDEX IF NOT EXISTS fact_claim_dated ON fact_claim (topic) WHERE since < said_at;
CREATE VIRTUAL TABLE IF NOT EXISTS fact_words USING fts5 (
    words, columnsize = 0, tokenize = "porter unicode61 categories 'L* N* Co M*'"
);
CREATE TABLE IF NOT EXISTS fact_erasure (
    seq INTEGER PRIMARY KEY,
    at INTEGER NOT NULL,
    kind TEXT NOT NULL,
    facts INTEGER NOT NULL,
    tombstone TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS forgotten (
    kind TEXT NOT NULL CHECK (kind IN ('message', 'scope', 'session')),
    name TEXT NOT NULL,
    upto INTEGER NOT NULL,
    PRIMARY KEY (kind, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS heard (
    session INTEGER PRIMARY KEY REFERENCES session (id),
    seq INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS unread (
    session INTEGER PRIMARY KEY REFERENCES session (id),
    seq INTEGER NOT NULL,
    is_owed INTEGER NOT NULL
);
CREATE VIRTUAL TABLE IF NOT EXISTS turn USING fts5 (
    words, content = '', columnsize = 0, detail = none,
    tokenize = "porter unicode61 categories 'L* N* Co M*'"
);
CREATE TABLE IF NOT EXISTS turn_cursor (
    session INTEGER PRIMARY KEY REFERENCES session (id),
    upto INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS node_fork ON node (place, parent) WHERE parent IS NOT place - 1;
ALTER TABLE node ADD COLUMN summary INTEGER;
ALTER TABLE node ADD COLUMN checkpoint INTEGER NOT NULL DEFAULT 0;
ALTER TABLE node ADD COLUMN standing INTEGER NOT NULL DEFAULT 0;
CREATE INDEX IF NOT EXISTS node_kept ON node (place) WHERE label IS NOT NULL OR checkpoint;
CREATE INDEX IF NOT EXISTS node_archived ON node (place) WHERE standing;
CREATE INDEX IF NOT EXISTS session_active ON session (agent, updated_at) WHERE state = 'active';
-- version 6
CREATE TABLE IF NOT EXISTS channel_memo (
    channel TEXT NOT NULL,
    account TEXT NOT NULL,
    slot TEXT NOT NULL CHECK (slot IN ('adapter', 'socket')),
    text TEXT NOT NULL,
    PRIMARY KEY (channel, account, slot)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS channel_heard (
    platform_id TEXT NOT NULL,
    channel TEXT NOT NULL,
    account TEXT NOT NULL,
    at INTEGER NOT NULL,
    outcome TEXT NOT NULL,
    detail TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (platform_id, channel, account)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS channel_heard_by_time ON channel_heard (at);
CREATE TABLE IF NOT EXISTS pairing (
    channel TEXT NOT NULL,
    account TEXT NOT NULL,
    person TEXT NOT NULL,
    name TEXT,
    state TEXT NOT NULL CHECK (state IN ('asked', 'paired', 'denied')),
    code_digest TEXT NOT NULL,
    asked_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    is_owner INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (channel, account, person)
) WITHOUT ROWID;
CREATE UNIQUE INDEX IF NOT EXISTS pairing_by_code ON pairing (code_digest) WHERE state = 'asked';
ALTER TABLE run ADD COLUMN whence TEXT;
CREATE TABLE delivery_new (
    id INTEGER PRIMARY KEY,
    delivery_id TEXT NOT NULL UNIQUE,
    run_id TEXT,
    session INTEGER REFERENCES session (id),
    channel TEXT NOT NULL,
    account TEXT NOT NULL,
    peer TEXT NOT NULL,
    thread TEXT,
    text TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('pending', 'sending', 'sent', 'unknown', 'failed')),
    attempts INTEGER NOT NULL DEFAULT 0,
    due_at INTEGER NOT NULL,
    receipt TEXT,
    why TEXT,
    whence TEXT,
    arrived INTEGER NOT NULL DEFAULT 0,
    settled_at INTEGER,
    is_safe INTEGER NOT NULL DEFAULT 0
);
INSERT INTO delivery_new (id, delivery_id, run_id, session, channel, account, peer, thread, text,
                          state, attempts, due_at, receipt, why)
SELECT id, delivery_id, run_id, session, channel, account, peer, thread, text, state, attempts,
       due_at, receipt, why FROM delivery;
DROP TABLE delivery;
ALTER TABLE delivery_new RENAME TO delivery;
CREATE INDEX delivery_open ON delivery (session, id) WHERE state IN ('pending', 'sending');
CREATE INDEX delivery_due ON delivery (due_at) WHERE state = 'pending';
CREATE INDEX delivery_dead ON delivery (id) WHERE state IN ('unknown', 'failed');
-- version 7
CREATE TABLE IF NOT EXISTS original (
    id INTEGER PRIMARY KEY,
    reference TEXT NOT NULL UNIQUE,
    session TEXT NOT NULL,
    run_id TEXT NOT NULL,
    tool TEXT NOT NULL,
    content BLOB NOT NULL,
    at INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS original_by_session ON original (session);
CREATE INDEX IF NOT EXISTS original_by_time ON original (at);
-- version 8
ALTER TABLE token_record ADD COLUMN overran INTEGER NOT NULL DEFAULT 0;
ALTER TABLE channel_heard ADD COLUMN why TEXT NOT NULL DEFAULT '';
ALTER TABLE channel_heard ADD COLUMN again TEXT NOT NULL DEFAULT '';
-- version 9
ALTER TABLE run ADD COLUMN has_journal INTEGER NOT NULL DEFAULT 0;
DROP INDEX run_with_log;
CREATE INDEX IF NOT EXISTS run_with_journal ON run (finished_at) WHERE has_journal;
DROP TABLE journal;
CREATE TABLE IF NOT EXISTS journal (
    run_id TEXT NOT NULL,
    part INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (run_id, part)
) WITHOUT ROWID;
