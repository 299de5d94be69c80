-- Written by version 2 of the schema: an ended run, a running one with a limit, a queued one.
BEGIN TRANSACTION;
CREATE TABLE delivery (
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
CREATE TABLE journal (
    id INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL,
    step INTEGER NOT NULL,
    kind TEXT NOT NULL,
    payload TEXT NOT NULL
);
INSERT INTO "journal" VALUES(1,'run-b',0,'reply','{}');
CREATE TABLE node (
    place INTEGER PRIMARY KEY,       -- session * 2^32 + number within the session
    id TEXT NOT NULL UNIQUE,
    parent INTEGER,                  -- place of the parent; NULL for a root
    run_id TEXT NOT NULL,
    role TEXT NOT NULL CHECK (role IN ('user', 'assistant', 'tool')),
    text TEXT NOT NULL,
    packed BLOB,                     -- JSON: tool calls, result, thinking, extras
    status TEXT NOT NULL CHECK (status IN ('complete', 'partial', 'cancelled', 'error')),
    tokens INTEGER NOT NULL,
    model TEXT,
    created_at INTEGER NOT NULL,
    label TEXT
);
INSERT INTO "node" VALUES(4294967297,'a-1',NULL,'run-a','user','question',NULL,'complete',3,NULL,1767268800000000,NULL);
INSERT INTO "node" VALUES(4294967298,'a-2',4294967297,'run-a','assistant','answer',NULL,'complete',3,NULL,1767268800000000,NULL);
CREATE TABLE plugin_space (
    id INTEGER PRIMARY KEY,
    plugin BLOB NOT NULL,
    namespace BLOB NOT NULL,
    owner BLOB NOT NULL,             -- '@' and the person; empty: shared by all
    keys INTEGER NOT NULL,           -- what it holds, so that nobody has to count
    bytes INTEGER NOT NULL,
    UNIQUE (plugin, namespace, owner)
);
INSERT INTO "plugin_space" VALUES(1,X'6E6F746573',X'6E6F746573',X'40616E6E',1,2);
CREATE TABLE plugin_value (
    space INTEGER NOT NULL REFERENCES plugin_space (id),
    key BLOB NOT NULL,
    value BLOB NOT NULL,
    UNIQUE (space, key)
);
INSERT INTO "plugin_value" VALUES(1,X'6B',X'76');
CREATE TABLE pulse (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    commits INTEGER NOT NULL,        -- durable commits so far; store.mark must not be ahead of it
    probed_at INTEGER NOT NULL
);
INSERT INTO "pulse" VALUES(1,4,1767268800000000);
CREATE TABLE run (
    id INTEGER PRIMARY KEY,          -- order of acceptance over all sessions
    run_id TEXT NOT NULL UNIQUE,
    message_id TEXT NOT NULL,
    session INTEGER NOT NULL REFERENCES session (id),
    seq INTEGER NOT NULL,            -- order of acceptance within the session
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
    log BLOB                         -- NULL: not ended, or forgotten
);
INSERT INTO "run" VALUES(1,'run-a','msg-a',1,1,'done',1,0,1767268800000000,1767268801000000,'default','websocket','local','p1','d',NULL,NULL,500,'answered','hello','{"turn":1}',X'7B2274797065223A22646F6E65227D0A');
INSERT INTO "run" VALUES(2,'run-b','msg-b',1,2,'running',1,0,1767268800000000,NULL,'default','websocket','local',NULL,'',NULL,NULL,77,NULL,'hello','',NULL);
INSERT INTO "run" VALUES(3,'run-c','msg-c',1,3,'queued',0,0,1767268800000000,NULL,'default','websocket','local',NULL,'',NULL,NULL,NULL,NULL,'hello','',NULL);
CREATE TABLE session (
    id INTEGER PRIMARY KEY,
    key TEXT NOT NULL UNIQUE,
    agent TEXT NOT NULL,
    channel TEXT NOT NULL,
    account TEXT NOT NULL,
    peer TEXT NOT NULL,
    created_at INTEGER NOT NULL,     -- microseconds since 1970, UTC, as every time here
    updated_at INTEGER NOT NULL,
    state TEXT NOT NULL DEFAULT 'active' CHECK (state IN ('active', 'closed')),
    message_count INTEGER NOT NULL DEFAULT 0,
    input_tokens INTEGER NOT NULL DEFAULT 0,
    output_tokens INTEGER NOT NULL DEFAULT 0,
    cost_usd REAL,                   -- NULL: no call had a known price
    last_seq INTEGER NOT NULL DEFAULT 0,
    head INTEGER                     -- place of the node that the next message grows from
);
INSERT INTO "session" VALUES(1,'demo:websocket:local:main','demo','websocket','local','main',1767268800000000,1767268801000000,'active',2,10,5,NULL,2,4294967298);
CREATE INDEX session_by_time ON session (updated_at);
CREATE INDEX session_by_agent ON session (agent, updated_at);
CREATE INDEX session_by_account ON session (channel, account, updated_at);
CREATE UNIQUE INDEX run_once ON run (platform_id, channel, account)
    WHERE platform_id IS NOT NULL;
CREATE UNIQUE INDEX run_in_session ON run (session, seq);
CREATE INDEX run_unfinished ON run (id) WHERE finished_at IS NULL;
CREATE INDEX run_with_log ON run (finished_at) WHERE log IS NOT NULL;
CREATE INDEX node_by_label ON node (label, place) WHERE label IS NOT NULL;
CREATE UNIQUE INDEX journal_once ON journal (run_id, step, kind);
CREATE INDEX delivery_open ON delivery (session, id)
    WHERE state IN ('pending', 'sending');
CREATE INDEX delivery_due ON delivery (due_at) WHERE state = 'pending';
COMMIT;
PRAGMA user_version = 2;
