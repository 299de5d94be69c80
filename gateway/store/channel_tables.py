"""The tables of channels as SQL."""

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
