"""The tables, each declared once. SQLite's tables are made from the declarations, and older
databases are brought up to them."""

import contextlib
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache, cached_property, lru_cache
from typing import Any

from gateway.domain.errors import StoreRefused
from gateway.domain.ids import SessionKey, to_micros, to_time
from gateway.store.upgrades import BEFORE_ROOMS, fill_tables, move_rooms, rename_replaced

VERSION = 10

# A column's type -> SQLite's. A time is in microseconds since 1970, UTC; a `key` is a session's.
_TYPES = {"text": "TEXT", "int": "INTEGER", "time": "INTEGER", "bool": "INTEGER"}
_TYPES |= {"real": "REAL", "blob": "BLOB", "json": "TEXT", "key": "TEXT"}
# Decoders of the types whose values in a row differ from those in the database.
_DECODED: Mapping[str, Callable[[Any], object]] = {
    "time": to_time,
    "bool": bool,
    "key": lru_cache(maxsize=1024)(SessionKey.parse),
}
ENCODED: Mapping[type, Callable[[Any], Any]] = {datetime: to_micros, SessionKey: str}


@dataclass(frozen=True, slots=True)
class Column:
    """One column. `options`: `key`, `unique`, `=` and the default, `in` or `within` and the
    permitted values, `of` and the referenced table, `record`: the key of a row in a database
    without row numbers. `is_optional`: the value may be missing."""

    name: str
    type: str
    is_optional: bool
    options: Mapping[str, str]

    @property
    def sql(self) -> str:
        words = [self.name, _TYPES[self.type]]
        if not self.is_optional and "key" not in self.options:
            words.append("NOT NULL")
        for option, value in self.options.items():
            match option:
                case "=":
                    words.append(f"DEFAULT {self._quoted(value)}")
                case "in":
                    values = ", ".join(map(self._quoted, value.split("|")))
                    words.append(f"CHECK ({self.name} IN ({values}))")
                case "within":
                    words.append(f"CHECK ({self.name} BETWEEN {value.replace('..', ' AND ')})")
                case _ if option in _OPTIONS:
                    words.append(f"{_OPTIONS[option]} {value}")
        return " ".join(words)

    def _quoted(self, value: str) -> str:
        return f"'{value}'" if self.type == "text" else value


@dataclass(frozen=True, slots=True)
class Index:
    name: str
    columns: str
    is_unique: bool
    where: str | None


@dataclass(frozen=True)
class Table:
    """One table. `constraints` are keys and unique combinations of several columns."""

    name: str
    columns: Sequence[Column]
    constraints: Sequence[str]
    indexes: Sequence[Index]

    @cached_property
    def types(self) -> Mapping[str, str]:
        return {one.name: one.type for one in self.columns}

    @cached_property
    def identifying(self) -> frozenset[str]:
        """The columns of its keys and of its unique combinations."""
        several = " ".join(self.constraints)
        return frozenset(
            one.name
            for one in self.columns
            if one.options.keys() & {"key", "unique"} or re.search(rf"\b{one.name}\b", several)
        )

    @cached_property
    def record(self) -> Sequence[str]:
        """The columns of its natural key, which identifies a row in a database of records."""
        marked = [one.name for one in self.columns if "record" in one.options]
        several = [_names(one) for one in self.constraints]
        keys = [one.name for one in self.columns if "key" in one.options]
        return marked or (several[0] if several else keys)

    @cached_property
    def number(self) -> str | None:
        """The column that numbers new rows, if there is one."""
        typed = (one for one in self.columns if "key" in one.options)
        return next((one.name for one in typed if one.type == "int"), None)

    @cached_property
    def once(self) -> Mapping[str, Sequence[str]]:
        """Its other unique combinations of columns, by the name of their index."""
        alone = {one.name: [one.name] for one in self.columns if "unique" in one.options}
        indexed = {one.name: one.columns.split(", ") for one in self.indexes if one.is_unique}
        return {name: some for name, some in (alone | indexed).items() if some != [*self.record]}

    @cached_property
    def optional(self) -> frozenset[str]:
        return frozenset(one.name for one in self.columns if one.is_optional)

    @cached_property
    def enumerated(self) -> frozenset[str]:
        """The columns with a fixed set of words."""
        return frozenset(one.name for one in self.columns if "in" in one.options)

    @cached_property
    def where(self) -> Mapping[str, str]:
        """The condition of each partial index."""
        return {one.name: one.where for one in self.indexes if one.where}

    @cached_property
    def marks(self) -> Mapping[str, str]:
        """Conditions of partial indexes by `in_NAME`, without those that only require a value in
        their own column."""
        own = {one.name: f"{one.columns.split(', ')[0]} IS NOT NULL" for one in self.indexes}
        return {f"in_{name}": term for name, term in self.where.items() if term != own[name]}

    def decoders(self, names: Sequence[str]) -> Sequence[tuple[str, Callable[[Any], object]]]:
        """Returns the columns whose row values differ from those in the database, with their
        decoders."""
        decoded = [(one, _DECODED.get(self.types[one])) for one in names]
        return [(one, decode) for one, decode in decoded if decode is not None]

    def decoded(self, row: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
        """Returns the row, with these columns decoded."""
        for name, decode in self.decoders(names):
            row[name] = None if row[name] is None else decode(row[name])
        return row

    def row_of(self, value: object) -> dict[str, Any]:
        """Returns the row of a value with an attribute for each column."""
        return {name: getattr(value, name) for name in self.types}

    @property
    def sql(self) -> str:
        """The statement that makes the table, without its indexes."""
        parts = ", ".join([*(column.sql for column in self.columns), *self.constraints])
        has_key = any(one.startswith("PRIMARY KEY") for one in self.constraints)
        layout = " WITHOUT ROWID" if has_key else ""  # rows are stored in the order of their key
        return f"CREATE TABLE IF NOT EXISTS {self.name} ({parts}){layout}"

    @property
    def index_sql(self) -> Iterator[str]:
        for one in self.indexes:
            kind = "UNIQUE INDEX" if one.is_unique else "INDEX"
            where = f" WHERE {one.where}" if one.where else ""
            index = f"{self.name}_{one.name} ON {self.name} ({one.columns}){where}"
            yield f"CREATE {kind} IF NOT EXISTS {index}"


_OPTIONS = {"key": "PRIMARY KEY", "unique": "UNIQUE", "of": "REFERENCES"}


def _names(constraint: str) -> list[str]:
    return constraint.partition("(")[2].rstrip(")").split(", ")


_INDEX = re.compile(r"(UNIQUE )?INDEX (\w+) \((.+?)\)(?: WHERE (.+))?")


def _parsed(declared: str) -> Table:
    name, *lines = declared.split("\n")
    columns, constraints, indexes = list[Column](), list[str](), list[Index]()
    for line in filter(None, map(str.strip, lines)):
        if found := _INDEX.fullmatch(line):
            indexes.append(Index(found[2], found[3], bool(found[1]), found[4]))
        elif line.startswith(("UNIQUE", "PRIMARY KEY")):
            constraints.append(line)
        else:
            names, type_, *words = line.partition("#")[0].split()
            options = {option: value for option, _, value in (one.partition(":") for one in words)}
            like = (type_.rstrip("?"), type_.endswith("?"), options)
            columns += [Column(one, *like) for one in names.split(",")]
    return Table(name, columns, constraints, indexes)


# A declaration holds the name of the table; its columns, as `names type options` for columns of one
# type (`?`: optional); keys and unique combinations of several columns; indexes.
_DECLARED = (
    """session
    id int key
    key key unique record
    agent,channel,account,peer text
    created_at,updated_at time
    state text =:active in:active|closed
    message_count,input_tokens,output_tokens int =:0  # tokens: counted before there was a ledger
    cost_usd real?  # missing: no call had a known price
    last_seq int =:0
    head int?       # place of the node under which the next message is added
    epoch int =:0   # of the owner in a cluster; earlier owners commit nothing
    choice int?     # number of its last change in `choice`, in a cluster
    INDEX by_time (updated_at)
    INDEX by_agent (agent, updated_at)
    INDEX by_account (channel, account, updated_at)
    INDEX active (agent, updated_at) WHERE state = 'active'
    """,
    """run
    id int key     # order of acceptance over all sessions
    run_id text unique record
    session int of:session
    seq int        # order of acceptance within the session
    state text in:queued|running|done|dead
    attempts int
    forgiven int =:0
    accepted_at time
    finished_at time?
    message_id,matched_by,channel,account,digest text
    platform_id,sender,context_id,outcome text?
    limits json?   # of the request itself
    whence json?   # details of the reply address
    has_journal bool =:0
    content text
    summary text =:
    log,tape blob? # of a run that version 8 ended, until it is swept
    partition int =:0
    stop text?     # how another node shall stop it
    begun_by text? # the node of the last attempt, in a cluster
    UNIQUE INDEX once (platform_id, channel, account) WHERE platform_id IS NOT NULL
    UNIQUE INDEX in_session (session, seq)
    INDEX unfinished (partition, id) WHERE finished_at IS NULL
    INDEX with_journal (finished_at) WHERE has_journal
    """,
    # Each part is packed lines: of entries, or of chunks as they were sent.
    """journal
    run_id text
    part int
    data blob
    PRIMARY KEY (run_id, part)
    """,
    # `summary` is the place of the newest summary on the path to a node; for a summary it is its
    # own place. Summaries have the role `tool`: the role check of earlier versions would refuse
    # another one, and recall does not read tool results as speech.
    """node
    place int key # session * 2^32 + number within the session
    id text unique
    parent int?   # place of the parent; missing for a root
    run_id text
    role text in:user|assistant|tool
    text text
    packed blob?  # JSON: tool calls, result, thinking, extras
    status text in:complete|partial|cancelled|error
    tokens int
    model text?
    created_at time
    label text?
    summary int?
    checkpoint bool =:0
    standing int =:0  # 1: archived, 2: erased
    INDEX by_label (label, place) WHERE label IS NOT NULL
    INDEX fork (place, parent) WHERE parent IS NOT place - 1
    INDEX kept (place) WHERE label IS NOT NULL OR checkpoint
    INDEX archived (place) WHERE standing
    """,
    """delivery
    id int key
    delivery_id text unique record
    run_id text?           # missing: no turn made it
    session int? of:session
    channel,account,peer text
    thread text?
    text text
    state text in:pending|sending|sent|unknown|failed
    attempts int =:0
    due_at time
    receipt,why text?
    whence json?           # of the message that it answers
    arrived int =:0        # characters of the text that the platform has
    settled_at time?
    is_safe bool =:0       # the last requests may be repeated
    INDEX open (session, id) WHERE state IN ('pending', 'sending')
    INDEX due (due_at) WHERE state = 'pending'
    INDEX dead (id) WHERE state IN ('unknown', 'failed')
    """,
    # Durable commits so far; store.mark must not be ahead of this count.
    "pulse\nid int key in:1\ncommits int\nprobed_at time",
    # Values of plugins. An owner is `@` and the person, or empty if all share the space. `keys` and
    # `bytes` count its content, so that no write has to.
    """plugin_space
    id int key
    plugin,namespace,owner blob
    keys,bytes int
    UNIQUE (plugin, namespace, owner)
    """,
    "plugin_value\nspace int of:plugin_space\nkey,value blob\nUNIQUE (space, key)",
    # Settings that users made for all of their own queries.
    "settings\nuser text\njson json\nPRIMARY KEY (user)",
    # State and notices for later runs. A notice belongs to the session that posted it until a run
    # claims it; the end of that run deletes or frees it.
    "rule_state\nsession int key of:session\njson json",
    """notice
    id int key
    agent,person text
    session int of:session
    claimed_by text?
    expires_at time?
    json json
    INDEX for (agent, person, id)
    INDEX claimed (claimed_by) WHERE claimed_by IS NOT NULL
    """,
    # The ledger. `spend` holds counters, so that no read has to add up; there are few series, so a
    # page of any of them is one lookup per series.
    """spend
    kind text in:session|agent|day|month|model|token_day|token_month
    name text
    calls,priced int =:0  # priced: calls with a known price
    input_tokens,output_tokens,nano_usd int =:0
    since time
    warned text =:
    held_tokens,held_nano_usd int =:0  # by calls of all nodes, in a shared store
    PRIMARY KEY (kind, name)
    """,
    """reservation
    id text
    session key
    run_id,provider,model text
    at time
    day text
    input_tokens,held_tokens,held_nano_usd int
    person text?  # the speaker, if known
    node text =:  # that made the call, in a cluster
    PRIMARY KEY (id)
    """,
    "series\nid int key\nagent,provider,model text\nUNIQUE (agent, provider, model)",
    """token_record
    seq int key
    id text
    at time
    series int of:series
    session key
    run_id text
    day text      # of the reservation: the day that was charged
    outcome text in:answered|failed|broken|lost
    input_tokens,output_tokens,cached_tokens,reasoning_tokens,nano_usd int
    pricing text in:provider|config|table|unpriced
    estimated bool
    overran bool =:0
    person text?  # as in the reservation
    INDEX by_series (series, at)
    INDEX by_session (session, series, at)
    INDEX by_time (at)
    """,
    # The tokens by which a limit is raised on one day.
    "budget_raise\nday,scope text\ntokens int\nPRIMARY KEY (day, scope)",
    # Tokens that were created while the gateway ran. The row of a revoked token stays: its name
    # owns sessions and facts.
    """token
    digest text          # SHA-256 of the token
    name,hint text
    scopes json
    budget json?
    created_at time
    created_by text
    expires_at,revoked_at,last_used_at time?
    PRIMARY KEY (digest)
    INDEX by_name (name)
    UNIQUE INDEX in_force (name) WHERE revoked_at IS NULL
    """,
    # Other gateways over the same store poll this row; the version grows with every change.
    "live\nname text in:keys\nversion int\nPRIMARY KEY (name)",
    # The model and mode chosen in the chat for a session, in a cluster; `change` numbers the
    # choices.
    """choice
    session text
    model,mode text?
    change int
    PRIMARY KEY (session)
    INDEX by_change (change)
    """,
    # `seq` is 1, 2, 3, …: a gap is a loss. `hash` covers the entry and the hash of the previous
    # one.
    """audit
    seq int key
    at time
    kind,actor text
    detail json
    hash text
    INDEX by_kind (kind, seq)
    """,
    # Facts. A group is a scope that owns facts or a session in which they were said. Its facts are
    # adjacent, and its number is never reused. `last` numbers its newest fact.
    """fact_group
    id int key:AUTOINCREMENT
    kind text in:scope|session
    name text
    last int =:0
    UNIQUE (kind, name)
    """,
    # Subject and predicate in their compared forms.
    """fact_topic
    id int key
    scope int of:fact_group
    subject,predicate text
    UNIQUE (scope, subject, predicate)
    INDEX by_predicate (scope, predicate)
    """,
    """fact
    place int key          # scope * 2^32 + number within the scope
    room_place int? unique # the same in the session; missing if scope and session are one
    id text                # of its first claim
    scope,session int of:fact_group
    topic int of:fact_topic
    about,form text        # the forms of the subject and of the object
    entity_type text in:fact|relationship|attribute
    subject,predicate,object text
    functional bool
    confidence real within:0..1
    learned_at,valid_from time
    valid_to,superseded_at time?
    superseded_by text?
    INDEX by_topic (topic, functional, form)
    INDEX by_session (session, valid_from)
    INDEX by_learning (scope, learned_at)
    INDEX current (scope, valid_from) WHERE superseded_at IS NULL
    INDEX by_object (scope, form, valid_from) WHERE superseded_at IS NULL
    INDEX by_subject (scope, about, valid_from) WHERE superseded_at IS NULL
    INDEX by_object_there (session, form, valid_from) WHERE superseded_at IS NULL
    INDEX by_subject_there (session, about, valid_from) WHERE superseded_at IS NULL
    INDEX superseded (superseded_by) WHERE superseded_by IS NOT NULL
    UNIQUE INDEX one_current (topic) WHERE superseded_at IS NULL AND functional
    """,
    """fact_claim
    seq int key    # order of learning
    id text unique
    fact int of:fact
    topic int of:fact_topic
    session int of:fact_group
    object text
    functional bool
    confidence real
    learned_at,since,said_at time
    until time?
    message_id,quote,said_by text?  # missing: without a source
    INDEX by_fact (fact, seq)
    INDEX by_time (topic, since, said_at)
    INDEX by_session (session)
    INDEX ended (topic) WHERE until IS NOT NULL
    INDEX dated (topic) WHERE since < said_at
    """,
    # Tombstones of erasures, and marks of statements not to be learned again: a message by its id;
    # everything said in a scope or session until `upto`, by a digest.
    """fact_erasure
    seq int key
    at time
    kind text
    facts int
    tombstone text
    """,
    """forgotten
    kind text in:message|scope|session
    name text
    upto time
    PRIMARY KEY (kind, name)
    """,
    # The progress of readers: of patterns that look for facts, of a model that does (`is_owed`:
    # messages wait for it), and of the index of words.
    "heard\nsession int key of:session\nseq int",
    "unread\nsession int key of:session\nseq int\nis_owed bool",
    "turn_cursor\nsession int key of:session\nupto int",
    # Packed results of tools of which a model saw an excerpt. Their session needs no row: for a
    # caller who keeps the conversation it is a run that is forgotten when it ends.
    """original
    id int key
    reference text unique record
    session key
    run_id,tool text
    content blob
    at time
    INDEX by_session (session)
    INDEX by_time (at)
    """,
    # Data of channels: memos for their next call; messages answered without a turn or unreadable
    # (why, and the text for another try); and pairings.
    """channel_memo
    channel,account text
    slot text in:adapter|socket
    text text
    PRIMARY KEY (channel, account, slot)
    """,
    """channel_heard
    platform_id,channel,account text
    at time
    outcome text
    detail,why,again text =:
    PRIMARY KEY (platform_id, channel, account)
    INDEX by_time (at)
    """,
    """pairing
    channel,account,person text
    name text?
    state text in:asked|paired|denied
    code_digest text
    asked_at,expires_at time
    is_owner bool =:0
    PRIMARY KEY (channel, account, person)
    UNIQUE INDEX by_code (code_digest) WHERE state = 'asked'
    """,
)

TABLES = {one.name: one for one in map(_parsed, _DECLARED)}

_TOKENS = "tokenize = \"porter unicode61 categories 'L* N* Co M*'\""
WORDS = (
    # The words of current facts, at their places.
    f"CREATE VIRTUAL TABLE IF NOT EXISTS fact_words USING fts5 (words, columnsize = 0, {_TOKENS})",
    # The places of each word in messages. The words themselves are not kept.
    "CREATE VIRTUAL TABLE IF NOT EXISTS turn USING fts5 "
    f"(words, content = '', columnsize = 0, detail = none, {_TOKENS})",
)
_MORE = (
    *WORDS,
    "CREATE TRIGGER IF NOT EXISTS audit_is_not_changed BEFORE UPDATE ON audit "
    "BEGIN SELECT RAISE(ABORT, 'the audit is only appended to'); END",
    "CREATE TRIGGER IF NOT EXISTS audit_is_not_deleted BEFORE DELETE ON audit "
    "BEGIN SELECT RAISE(ABORT, 'the audit is only appended to'); END",
    "INSERT OR IGNORE INTO pulse (id, commits, probed_at) VALUES (1, 0, 0)",
)


# --- versions ------------------------------------------------------------------------------------
@cache
def newest_columns() -> frozenset[tuple[str, str]]:
    """Returns (table, column) of an up-to-date database."""
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
            f"{where} has schema version {version}, and this program knows up to {VERSION}: run the "
            "newer program, or restore a backup made before the update"
        )


def migrate(db: sqlite3.Connection) -> None:
    """Makes all tables, or brings those of an earlier version up to date, in one transaction."""
    version = version_of(db)
    if version >= VERSION:
        return
    db.execute("BEGIN IMMEDIATE")
    replaced = rename_replaced(db, columns_of(db))
    for table in TABLES.values():
        db.execute(table.sql)
    there = columns_of(db)
    for table in TABLES.values():
        for column in table.columns:
            if (table.name, column.name) not in there:
                db.execute(f"ALTER TABLE {table.name} ADD COLUMN {column.sql}")
    fill_tables(db, replaced)
    for statement in (*(one for table in TABLES.values() for one in table.index_sql), *_MORE):
        db.execute(statement)
    if 0 < version <= BEFORE_ROOMS:
        move_rooms(db)
    db.execute(f"PRAGMA user_version = {VERSION}")
    db.execute("COMMIT")
