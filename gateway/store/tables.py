"""The tables as SQL, and how an older database becomes a newer one."""

import contextlib
import sqlite3
from functools import cache

from gateway.domain.errors import StoreRefused
from gateway.store.journals import move_journals
from gateway.store.rooms import move_rooms

FIRST = """
CREATE TABLE IF NOT EXISTS session (
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
CREATE INDEX IF NOT EXISTS session_by_time ON session (updated_at);
CREATE INDEX IF NOT EXISTS session_by_agent ON session (agent, updated_at);
CREATE INDEX IF NOT EXISTS session_by_account ON session (channel, account, updated_at);

CREATE TABLE IF NOT EXISTS run (
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
CREATE UNIQUE INDEX IF NOT EXISTS run_once ON run (platform_id, channel, account)
    WHERE platform_id IS NOT NULL;
CREATE UNIQUE INDEX IF NOT EXISTS run_in_session ON run (session, seq);
CREATE INDEX IF NOT EXISTS run_unfinished ON run (id) WHERE finished_at IS NULL;
CREATE INDEX IF NOT EXISTS run_with_log ON run (finished_at) WHERE log IS NOT NULL;

CREATE TABLE IF NOT EXISTS node (
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
    commits INTEGER NOT NULL,        -- durable commits so far; store.mark must not be ahead of it
    probed_at INTEGER NOT NULL
);
INSERT OR IGNORE INTO pulse VALUES (1, 0, 0);
"""

PLUGINS = """
CREATE TABLE IF NOT EXISTS plugin_space (
    id INTEGER PRIMARY KEY,
    plugin BLOB NOT NULL,
    namespace BLOB NOT NULL,
    owner BLOB NOT NULL,             -- '@' and the person; empty: shared by all
    keys INTEGER NOT NULL,           -- what it holds, so that nobody has to count
    bytes INTEGER NOT NULL,
    UNIQUE (plugin, namespace, owner)
);
CREATE TABLE IF NOT EXISTS plugin_value (
    space INTEGER NOT NULL REFERENCES plugin_space (id),
    key BLOB NOT NULL,
    value BLOB NOT NULL,
    UNIQUE (space, key)
);
"""

# What users have set for all of their own queries.
SETTINGS = """
CREATE TABLE IF NOT EXISTS settings (
    user TEXT PRIMARY KEY,
    json TEXT NOT NULL
) WITHOUT ROWID;
"""

# What runs leave to later ones.
AFTERMATH = """
CREATE TABLE IF NOT EXISTS rule_state (
    session INTEGER PRIMARY KEY REFERENCES session (id),
    json TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS notice (
    id INTEGER PRIMARY KEY,
    agent TEXT NOT NULL,
    person TEXT NOT NULL,
    session INTEGER NOT NULL REFERENCES session (id),  -- that posted it
    claimed_by TEXT,                 -- run_id; its end takes the notice away, or sets it free
    expires_at INTEGER,
    json TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS notice_for ON notice (agent, person, id);
CREATE INDEX IF NOT EXISTS notice_claimed ON notice (claimed_by) WHERE claimed_by IS NOT NULL;
"""

# A request's own limits are more than one number now, as JSON. Renamed rather than made anew, so
# that a large database is not written again; its affinity leaves JSON as it is.
LIMITS = """
ALTER TABLE run RENAME COLUMN token_limit TO limits;
UPDATE run SET limits = '{"token_budget":' || limits || '}' WHERE limits IS NOT NULL;
-- What replaying a run needs, until its journal is swept.
ALTER TABLE run ADD COLUMN tape BLOB;
"""

LEDGER = """
CREATE TABLE IF NOT EXISTS spend (   -- counters, so that nobody has to add up
    kind TEXT NOT NULL CHECK (kind IN ('session', 'agent', 'day', 'month', 'model')),
    name TEXT NOT NULL,
    calls INTEGER NOT NULL DEFAULT 0,
    priced INTEGER NOT NULL DEFAULT 0, -- calls of which it is known what they cost
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

CREATE TABLE IF NOT EXISTS series (  -- few; so that a page of any of them is one look-up each
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
    day TEXT NOT NULL,               -- that of the reservation, which is what was charged
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
"""

OVERRAN = "ALTER TABLE token_record ADD COLUMN overran INTEGER NOT NULL DEFAULT 0"

AUDIT = """
CREATE TABLE IF NOT EXISTS audit (
    seq INTEGER PRIMARY KEY,         -- 1, 2, 3, …: a gap is a loss
    at INTEGER NOT NULL,
    kind TEXT NOT NULL,
    actor TEXT NOT NULL,
    detail TEXT NOT NULL,            -- JSON
    hash TEXT NOT NULL               -- over this entry and the hash of the one before
);
CREATE INDEX IF NOT EXISTS audit_by_kind ON audit (kind, seq);
CREATE TRIGGER IF NOT EXISTS audit_is_not_changed BEFORE UPDATE ON audit
BEGIN SELECT RAISE(ABORT, 'the audit is only appended to'); END;
CREATE TRIGGER IF NOT EXISTS audit_is_not_deleted BEFORE DELETE ON audit
BEGIN SELECT RAISE(ABORT, 'the audit is only appended to'); END;
"""

FACTS = """
CREATE TABLE IF NOT EXISTS fact_group (  -- whose, or said where; facts of one lie side by side
    id INTEGER PRIMARY KEY AUTOINCREMENT,  -- a place is never another person's
    kind TEXT NOT NULL CHECK (kind IN ('scope', 'session')),
    name TEXT NOT NULL,
    last INTEGER NOT NULL DEFAULT 0,     -- number of its newest
    UNIQUE (kind, name)
);
CREATE TABLE IF NOT EXISTS fact_topic (
    id INTEGER PRIMARY KEY,
    scope INTEGER NOT NULL REFERENCES fact_group (id),
    subject TEXT NOT NULL,               -- both without what does not tell things apart
    predicate TEXT NOT NULL,
    UNIQUE (scope, subject, predicate)
);
CREATE INDEX IF NOT EXISTS fact_topic_by_predicate ON fact_topic (scope, predicate);
CREATE TABLE IF NOT EXISTS fact (
    place INTEGER PRIMARY KEY,           -- scope * 2^32 + number within the scope
    room_place INTEGER UNIQUE,           -- the same of the session; NULL if that is all the scope's
    id TEXT NOT NULL,                    -- of its first claim
    scope INTEGER NOT NULL REFERENCES fact_group (id),
    session INTEGER NOT NULL REFERENCES fact_group (id),
    topic INTEGER NOT NULL REFERENCES fact_topic (id),
    about TEXT NOT NULL,                 -- the subject's form
    form TEXT NOT NULL,                  -- the object's
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
-- The database itself sees to it that of a functional predicate one object is current.
CREATE UNIQUE INDEX IF NOT EXISTS fact_one_current ON fact (topic)
    WHERE superseded_at IS NULL AND functional;
CREATE TABLE IF NOT EXISTS fact_claim (
    seq INTEGER PRIMARY KEY,             -- order of learning
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
    message_id TEXT,                     -- NULL: without a source
    quote TEXT,
    said_by TEXT
);
CREATE INDEX IF NOT EXISTS fact_claim_by_fact ON fact_claim (fact, seq);
CREATE INDEX IF NOT EXISTS fact_claim_by_time ON fact_claim (topic, since, said_at);
CREATE INDEX IF NOT EXISTS fact_claim_by_session ON fact_claim (session);
CREATE INDEX IF NOT EXISTS fact_claim_ended ON fact_claim (topic) WHERE until IS NOT NULL;
CREATE INDEX IF NOT EXISTS fact_claim_dated ON fact_claim (topic) WHERE since < said_at;
-- Of current facts, at their places.
CREATE VIRTUAL TABLE IF NOT EXISTS fact_words USING fts5 (
    words, columnsize = 0, tokenize = "porter unicode61 categories 'L* N* Co M*'"
);
CREATE TABLE IF NOT EXISTS fact_erasure (  -- what is left of what was erased
    seq INTEGER PRIMARY KEY,
    at INTEGER NOT NULL,
    kind TEXT NOT NULL,
    facts INTEGER NOT NULL,
    tombstone TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS forgotten (  -- what was said there until then is not learned again
    kind TEXT NOT NULL CHECK (kind IN ('message', 'scope', 'session')),
    name TEXT NOT NULL,              -- the message's id, else a digest
    upto INTEGER NOT NULL,
    PRIMARY KEY (kind, name)
) WITHOUT ROWID;
"""

# How far facts were looked for in what people said.
HEARING = """
CREATE TABLE IF NOT EXISTS heard (   -- by patterns, up to this node of the session
    session INTEGER PRIMARY KEY REFERENCES session (id),
    seq INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS unread (  -- by a model: what comes after this node, if it is owed
    session INTEGER PRIMARY KEY REFERENCES session (id),
    seq INTEGER NOT NULL,
    is_owed INTEGER NOT NULL
);
"""

# Where each word was said. The words themselves are not kept; its rows are places of nodes.
TURNS = """
CREATE VIRTUAL TABLE IF NOT EXISTS turn USING fts5 (
    words, content = '', columnsize = 0, detail = none,
    tokenize = "porter unicode61 categories 'L* N* Co M*'"
);
CREATE TABLE IF NOT EXISTS turn_cursor (
    session INTEGER PRIMARY KEY REFERENCES session (id),
    upto INTEGER NOT NULL            -- number of the last node that was looked at
);
CREATE INDEX IF NOT EXISTS node_fork ON node (place, parent) WHERE parent IS NOT place - 1;
"""
# The place of the newest summary on the path to a node: its own, and it is one itself. A role of its
# own would mean to write the table anew: it stands there as a tool's, so that nobody takes it for
# something that was said.
SUMMARIES = "ALTER TABLE node ADD COLUMN summary INTEGER"

# Labels that are kept, branches that are archived, and sessions that may expire.
STANDING = """
ALTER TABLE node ADD COLUMN checkpoint INTEGER NOT NULL DEFAULT 0;
ALTER TABLE node ADD COLUMN standing INTEGER NOT NULL DEFAULT 0;  -- 1: archived, 2: erased
CREATE INDEX IF NOT EXISTS node_kept ON node (place) WHERE label IS NOT NULL OR checkpoint;
CREATE INDEX IF NOT EXISTS node_archived ON node (place) WHERE standing;
CREATE INDEX IF NOT EXISTS session_active ON session (agent, updated_at) WHERE state = 'active'
"""

# Results of tools of which a model was shown less. A session here needs no row of its own: of a
# caller who keeps the conversation it is a run that is forgotten when it ends.
ORIGINALS = """
CREATE TABLE IF NOT EXISTS original (
    id INTEGER PRIMARY KEY,
    reference TEXT NOT NULL UNIQUE,
    session TEXT NOT NULL,
    run_id TEXT NOT NULL,
    tool TEXT NOT NULL,
    content BLOB NOT NULL,           -- packed
    at INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS original_by_session ON original (session);
CREATE INDEX IF NOT EXISTS original_by_time ON original (at)
"""

# What channels keep: memos for their next call, what they heard that started no turn, who may talk.
CHANNELS = """
CREATE TABLE IF NOT EXISTS channel_memo (
    channel TEXT NOT NULL,
    account TEXT NOT NULL,
    slot TEXT NOT NULL CHECK (slot IN ('adapter', 'socket')),
    text TEXT NOT NULL,
    PRIMARY KEY (channel, account, slot)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS channel_heard (  -- messages that were answered without a turn
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
"""
# Why a message could not be read, and what has to be taken in to try it again.
UNREAD = """
ALTER TABLE channel_heard ADD COLUMN why TEXT NOT NULL DEFAULT '';
ALTER TABLE channel_heard ADD COLUMN again TEXT NOT NULL DEFAULT ''
"""
# JSON: where an answer to this message goes besides its address.
WHENCE = "ALTER TABLE run ADD COLUMN whence TEXT"

# A delivery need not be a turn's answer, and may arrive in parts.
DELIVERIES = """
CREATE TABLE delivery_new (
    id INTEGER PRIMARY KEY,
    delivery_id TEXT NOT NULL UNIQUE,
    run_id TEXT,                     -- NULL: no turn made it
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
    whence TEXT,                     -- JSON, of the message that it answers
    arrived INTEGER NOT NULL DEFAULT 0,  -- characters of the text that the platform has
    settled_at INTEGER,
    is_safe INTEGER NOT NULL DEFAULT 0  -- the requests made last can be made again without harm
);
INSERT INTO delivery_new (id, delivery_id, run_id, session, channel, account, peer, thread, text,
                          state, attempts, due_at, receipt, why)
SELECT id, delivery_id, run_id, session, channel, account, peer, thread, text, state, attempts,
       due_at, receipt, why FROM delivery;
DROP TABLE delivery;
ALTER TABLE delivery_new RENAME TO delivery;
CREATE INDEX delivery_open ON delivery (session, id) WHERE state IN ('pending', 'sending');
CREATE INDEX delivery_due ON delivery (due_at) WHERE state = 'pending';
CREATE INDEX delivery_dead ON delivery (id) WHERE state IN ('unknown', 'failed')
"""

# One journal a run, in parts; what earlier versions wrote of runs that have ended stays in their rows
# until it is swept.
JOURNAL = """
CREATE TABLE IF NOT EXISTS run_journal (
    run_id TEXT NOT NULL,
    part INTEGER NOT NULL,
    data BLOB NOT NULL,              -- packed lines: entries, and chunks as they were sent
    PRIMARY KEY (run_id, part)
) WITHOUT ROWID;
"""
HAS_JOURNAL = """
ALTER TABLE run ADD COLUMN has_journal INTEGER NOT NULL DEFAULT 0;
UPDATE run SET has_journal = 1 WHERE log IS NOT NULL;
DROP INDEX IF EXISTS run_with_log;
CREATE INDEX IF NOT EXISTS run_with_journal ON run (finished_at) WHERE has_journal
"""

# Each step brings a database from the version of its index to the next one. A step may run again
# after a crash, so it must not mind what is already there.
MIGRATIONS: tuple[str, ...] = (
    FIRST,
    PLUGINS,
    SETTINGS + AFTERMATH,
    LEDGER + AUDIT,
    FACTS + HEARING + TURNS,
    CHANNELS,
    ORIGINALS,
    "",  # brings columns, and rooms their keys
    JOURNAL,
)
VERSION = len(MIGRATIONS)
_ROOMS = 7  # the step in which the rooms of channels get keys of their own
_JOURNALS = 8  # the step in which the notes of a run that has not ended become its journal
# What a step does besides as long as a column is still there, or not yet: SQL cannot ask for that itself.
_MOVES: tuple[tuple[int, tuple[str, str], str], ...] = ((2, ("run", "token_limit"), LIMITS),)
_ADDED: tuple[tuple[int, tuple[str, str], str], ...] = (
    (4, ("node", "summary"), SUMMARIES),
    (4, ("node", "standing"), STANDING),
    (5, ("run", "whence"), WHENCE),
    (5, ("delivery", "arrived"), DELIVERIES),
    (7, ("token_record", "overran"), OVERRAN),
    (7, ("channel_heard", "why"), UNREAD),
    (8, ("run", "has_journal"), HAS_JOURNAL),
)


@cache
def newest_columns() -> frozenset[tuple[str, str]]:
    """(table, column) of a database that is up to date."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        migrate(db)
        return columns_of(db)


def columns_of(db: sqlite3.Connection) -> frozenset[tuple[str, str]]:
    return frozenset(db.execute(_COLUMNS).fetchall())


_COLUMNS = """
SELECT t.name, c.name FROM sqlite_master t, pragma_table_info(t.name) c
WHERE t.type = 'table' AND t.name NOT LIKE 'sqlite_%'
"""


def version_of(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def require_known(version: int, where: str) -> None:
    if version > VERSION:
        raise StoreRefused(
            f"{where} has schema version {version}, this program knows up to {VERSION}: "
            "run the newer program again, or restore a backup made before the update"
        )


def migrate(db: sqlite3.Connection, to: int = VERSION) -> None:
    """Each step with its version number in one transaction."""
    for step in range(version_of(db), to):
        columns = columns_of(db)
        moves = [move for at, column, move in _MOVES if at == step and column in columns]
        moves += [add for at, column, add in _ADDED if at == step and column not in columns]
        script = "; ".join([MIGRATIONS[step], *moves])
        db.executescript(f"BEGIN IMMEDIATE; {script}")
        if step == _ROOMS:
            move_rooms(db)
        if step == _JOURNALS:
            move_journals(db)
        db.execute(f"PRAGMA user_version = {step + 1}")
        db.execute("COMMIT")
