"""An older database becomes the newest one, however often it is interrupted."""

import contextlib
import lzma
import sqlite3
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path

import anyio
import pytest
from anyio import to_thread
from pydantic_core import from_json, to_json

from gateway.agent.driver import RunJournal, part_of
from gateway.agent.effects import Steered
from gateway.domain.budgets import Amount, Grant, RecordQuery, Scope
from gateway.domain.ids import RunId
from gateway.domain.journal import grants_of, lines_of
from gateway.domain.messages import Excerpt, Extras, Spent, ToolCall, ToolResult, Usage
from gateway.domain.model import BudgetWarning, ModelReply
from gateway.store.sqlite import open_sqlite
from gateway.store.tables import VERSION, columns_of, migrate, newest_columns, version_of
from tests.fakes.clock import FakeClock
from tests.fakes.ledger import a_record, a_reservation
from tests.fakes.store import NOON, a_space, an_ending, an_entry, session_key
from tests.store.versions import of_version


def shape(db: sqlite3.Connection) -> set[tuple[object, ...]]:
    """Every column and every index, however its statement was laid out."""
    tables = "SELECT name FROM sqlite_master WHERE type = 'table'"
    columns = 'SELECT name, type, "notnull", dflt_value, pk FROM pragma_table_info(?)'
    others = "SELECT name, sql FROM sqlite_master WHERE type <> 'table'"
    return {
        *(
            (table, *column)
            for (table,) in db.execute(tables)
            for column in db.execute(columns, (table,))
        ),
        *((name, " ".join((sql or "").split())) for name, sql in db.execute(others)),
    }


@pytest.fixture
def newest() -> set[tuple[object, ...]]:
    """Of a new database, but for a column that keeps its type in an older one."""
    db = sqlite3.connect(":memory:", isolation_level=None)
    migrate(db)
    return shape(db) - {LIMITS}


LIMITS = ("run", "limits", "TEXT", 0, None, 0)


@pytest.mark.requirement("S-000-Store-03")
@pytest.mark.parametrize("version", range(VERSION))
def test_every_version_becomes_the_newest(newest: set[tuple[object, ...]], version: int) -> None:
    db = of_version(version)

    migrate(db)

    assert version_of(db) == VERSION
    assert shape(db) - {LIMITS, ("run", "limits", "INTEGER", 0, None, 0)} == newest


@pytest.mark.requirement("S-000-Store-03")
@pytest.mark.parametrize("version", range(1, VERSION))
def test_a_migration_changes_nothing_when_it_runs_again(version: int) -> None:
    db = of_version(version)
    migrate(db)
    before = shape(db)
    db.execute(f"PRAGMA user_version = {version}")

    migrate(db)

    assert (version_of(db), shape(db)) == (VERSION, before)


@pytest.fixture
def of_version_2(tmp_path: Path) -> Path:
    """A data directory as a gateway of then left it."""
    with contextlib.closing(sqlite3.connect(tmp_path / "store.db")) as db:
        db.executescript((Path(__file__).parent / "version_2.sql").read_text("utf-8"))
        assert version_of(db) == 2
    return tmp_path


async def test_a_database_that_version_2_wrote_keeps_everything(of_version_2: Path) -> None:
    async with open_sqlite(of_version_2, clock=FakeClock()) as stores:
        running, queued = await stores.inbox.unfinished()
        ended = await stores.inbox.find_run(RunId("run-a"))
        path = await stores.sessions.path(session_key(), limit=9)
        kept = await stores.tools.get(a_space(), "k")
        (part,) = await stores.journal.read(RunId("run-b"))
        ending = replace(an_ending("b", grown_from="a-2"), rule_state="{}")
        assert await stores.inbox.finish(ending)
        reservation, _ = await stores.ledger.reserve(a_reservation(), lambda _: Grant(1, Amount()))
        await stores.ledger.settle(a_record(reservation, 100, 50))
        session = await stores.sessions.find_session(session_key())

    assert running.new == replace(an_entry("b"), limits={"token_budget": 77})
    assert (running.state, running.attempts, running.seq) == ("running", 1, 2)
    assert (queued.new, queued.state) == (an_entry("c"), "queued")
    assert ended is not None
    assert (ended.entry.new.limits, ended.log) == ({"token_budget": 500}, b'{"type":"done"}\n')
    assert [node.message.text for node in path.nodes] == ["question", "answer"]
    assert session is not None
    assert (session.input_tokens, session.output_tokens) == (110, 55)
    assert (kept, list(lines_of([part]))[1:]) == ("v", [b'["reply",0,{}]'])
    async with open_sqlite(of_version_2, clock=FakeClock()) as again:
        assert await again.journal.rule_state(session_key()) == "{}"


async def test_what_version_9_counted_counts_on(tmp_path: Path) -> None:
    path, sample = tmp_path / "store.db", Path(__file__).parent / "version_9.db.xz"
    raw = lzma.decompress(await anyio.Path(sample).read_bytes())
    await anyio.Path(path).write_bytes(raw)
    day, month = Scope("day", "2026-11-19"), Scope("month", "2026-11")

    for _ in range(2):
        async with open_sqlite(tmp_path, clock=FakeClock()) as stores:
            tallies = await stores.ledger.tallies([day, month, Scope("agent", "main")])
            page = await stores.ledger.records(RecordQuery())

        assert [one.used.tokens for one in tallies] == [221, 221, 221]
        assert sum(one.amount.tokens for one in page.records) == 221
        assert len(page.records) == 5


REPLY = ModelReply(
    "one",
    "m",
    "look",
    "hm \U0001f600",
    (ToolCall("c:1", "pay", '{"n": 1}'), ToolCall("2", "look")),
    Usage(3, 4, cost_usd=0.5),
    "tool_calls",
    Extras("one", "[1]"),
    (BudgetWarning("day", "tokens", 0.9, 1),),
)
RESULTS = (
    ToolResult("c:1", "pay", "PAID", duration_ms=7, boundary="ab"),
    ToolResult(
        "2",
        "look",
        "é" * 9,
        is_error=True,
        spent=(Spent(Usage(1, 2), "one", "m"),),
        excerpt=Excerpt(1, 2, 9, "ref"),
    ),
)
MORE = Steered(RunId("run-more"), "and @ this: too")
OUTER = part_of("", ToolCall("c:1", "pay"), 1)
INNER = part_of(OUTER, ToolCall("2", "look"), 3)


def notes_of(part: str, step: int) -> list[tuple[int, str, str]]:
    """As version 8 wrote them of a run, or of one inside it: step, kind and payload."""
    kinds: list[tuple[str, object]] = [
        (f"said:{MORE.run_id}", asdict(MORE)),
        ("reply", asdict(REPLY)),
        *((f"begun:{one.call_id}", None) for one in RESULTS),
        *((f"result:{one.call_id}", asdict(one)) for one in RESULTS),
    ]
    return [(step, part + kind, to_json(value).decode()) for kind, value in kinds]


def of_version_8(path: Path | None = None) -> sqlite3.Connection:
    """A running run with all kinds of notes, a queued one, and one that has ended."""
    db = of_version(8, path)
    db.execute(
        "INSERT INTO session (id, key, agent, channel, account, peer, created_at, updated_at)"
        " VALUES (1, ?, 'demo', 'websocket', 'local', 'main', 0, 0)",
        (str(session_key()),),
    )
    ended = (5, b'{"seq":1}\n{"seq":2}', b"tape")
    runs = {"ended": ("done", *ended), "b": ("running",), "c": ("queued",)}
    for seq, (name, (state, *end)) in enumerate(runs.items(), 1):
        row = (f"run-{name}", f"msg-{name}", seq, state, *(end or (None, None, None)))
        db.execute(
            "INSERT INTO run (run_id, message_id, session, seq, state, content, digest, accepted_at,"
            " attempts, matched_by, channel, account, finished_at, log, tape)"
            " VALUES (?, ?, 1, ?, ?, 'hello', '', 0, 1, '', 'websocket', 'local', ?, ?, ?)",
            row,
        )
    notes = [*notes_of(INNER, 4), *notes_of("", 1), *notes_of(OUTER, 3)]
    db.executemany(ADD_NOTE, [("run-b", *note) for note in notes])
    db.execute(ADD_NOTE, ("run-ended", 1, "reply", "{}"))
    return db


ADD_NOTE = "INSERT INTO journal (run_id, step, kind, payload) VALUES (?, ?, ?, ?)"


def parts_in(db: sqlite3.Connection, run_id: str) -> Sequence[bytes]:
    rows = db.execute("SELECT data FROM journal WHERE run_id = ? ORDER BY part", (run_id,))
    return [row[0] for row in rows]


@pytest.mark.parametrize(("part", "step"), [("", 1), (OUTER, 3), (INNER, 4)])
def test_what_version_8_had_granted_an_unfinished_run_is_granted_again(
    part: str, step: int
) -> None:
    db = of_version_8()

    migrate(db)

    grants = grants_of(parts_in(db, "run-b"), from_json)
    granted = RunJournal(FakeClock(), grants, part=part)
    assert granted.replies == {step: REPLY}
    assert granted.results == {(step, one.call_id): one for one in RESULTS}
    assert [one.boundary for one in granted.results.values()] == ["ab", ""]
    assert granted.begun == {(step, one.call_id) for one in RESULTS}
    assert granted.taken == {MORE.run_id: (step, MORE)}
    assert [parts_in(db, f"run-{name}") for name in ("c", "ended")] == [[], []]


@pytest.mark.parametrize("part", ["", OUTER, INNER])
def test_a_call_that_a_model_named_with_an_at_sign_keeps_its_result(part: str) -> None:
    db = of_version_8()
    result = ToolResult("call@1:2", "pay", "PAID")
    payload = to_json(asdict(result)).decode()
    db.execute(ADD_NOTE, ("run-b", 7, f"{part}result:call@1:2", payload))

    migrate(db)

    grants = grants_of(parts_in(db, "run-b"), from_json)
    granted = RunJournal(FakeClock(), grants, part=part)
    assert granted.results[7, "call@1:2"] == result


def test_notes_become_a_journal_once_however_often_the_step_runs() -> None:
    db = of_version_8()
    migrate(db)
    before = parts_in(db, "run-b")

    for version in (8, 8):
        db.execute(f"PRAGMA user_version = {version}")
        migrate(db)

    assert parts_in(db, "run-b") == before
    assert len(before) == 1


def test_a_step_that_is_interrupted_within_leaves_the_notes() -> None:
    db = of_version_8()
    notes = db.execute("SELECT * FROM journal").fetchall()
    db.execute("UPDATE journal SET payload = '{' WHERE id = 1")
    with pytest.raises(ValueError, match="EOF"):
        migrate(db)
    db.execute("ROLLBACK")
    db.execute("UPDATE journal SET payload = ? WHERE id = 1", (notes[0][-1],))
    assert (version_of(db), db.execute("SELECT * FROM journal").fetchall()) == (8, notes)

    migrate(db)

    grants = grants_of(parts_in(db, "run-b"), from_json)
    assert RunJournal(FakeClock(), grants).replies == {1: REPLY}


async def test_the_log_of_a_run_that_version_8_ended_is_served_until_it_is_swept(
    tmp_path: Path,
) -> None:
    def write() -> None:
        of_version_8(tmp_path / "store.db").close()

    def left() -> list[tuple[bytes | None, ...]]:
        with contextlib.closing(sqlite3.connect(tmp_path / "store.db")) as db:
            query = "SELECT log, tape FROM run WHERE run_id = 'run-ended'"
            return db.execute(query).fetchall()

    await to_thread.run_sync(write)
    with anyio.fail_after(60):
        async with open_sqlite(tmp_path, clock=FakeClock()) as stores:
            before = await stores.inbox.find_run(RunId("run-ended"))
            parts = await stores.journal.read(RunId("run-ended"))
            swept = await stores.care.sweep(before=NOON + timedelta(days=1), limit=9)
            after = await stores.inbox.find_run(RunId("run-ended"))
            running = await stores.journal.read(RunId("run-b"))

    assert before is not None
    assert after is not None
    assert (before.log, parts, swept, after.log) == (b'{"seq":1}\n{"seq":2}', [], 1, b"")
    assert len(running) == 1
    assert await to_thread.run_sync(left) == [(None, None)]


def test_deliveries_from_before_there_were_channels_are_kept() -> None:
    db = of_version(5)
    db.execute(
        "INSERT INTO session (id, key, agent, channel, account, peer, created_at, updated_at)"
        " VALUES (1, 'a:c:d:p', 'a', 'c', 'd', 'p', 0, 0)"
    )
    db.execute(
        "INSERT INTO delivery VALUES (7, 'd1', 'r1', 1, 'c', 'd', 'p', NULL, 'hi', 'sending',"
        " 2, 5, 'receipt', 'why')"
    )

    migrate(db)

    row = db.execute("SELECT * FROM delivery").fetchall()
    known = (7, "d1", "r1", 1, "c", "d", "p", None, "hi", "sending", 2, 5, "receipt", "why")
    assert row == [(*known, None, 0, None, 0)]


@pytest.mark.requirement("S-003-Index-01", "S-000-Store-04")
@pytest.mark.parametrize(
    ("query", "index"),
    [
        ("SELECT * FROM session WHERE key = ''", "sqlite_autoindex_session_1"),
        ("SELECT * FROM session WHERE agent = '' ORDER BY updated_at DESC", "session_by_agent"),
        ("SELECT * FROM session ORDER BY updated_at DESC", "session_by_time"),
        ("SELECT * FROM run WHERE finished_at IS NULL", "run_unfinished"),
        ("SELECT * FROM run WHERE has_journal AND finished_at < 5", "run_with_journal"),
        ("SELECT * FROM node WHERE id = ''", "sqlite_autoindex_node_1"),
        ("SELECT * FROM node WHERE label = '' AND place > 1 AND place < 2", "node_by_label"),
        (
            "SELECT id FROM plugin_space WHERE plugin = '' AND namespace = '' AND owner = ''",
            "sqlite_autoindex_plugin_space_1",
        ),
        (
            "SELECT key FROM plugin_value WHERE space = 1 AND key >= '' AND key < '' ORDER BY key",
            "COVERING INDEX sqlite_autoindex_plugin_value_1",
        ),
        ("SELECT json FROM settings WHERE user = ''", "USING PRIMARY KEY"),
        ("SELECT id FROM notice WHERE agent = '' AND person = '' ORDER BY id DESC", "notice_for"),
        ("SELECT id FROM notice WHERE claimed_by = ''", "notice_claimed"),
        ("SELECT * FROM spend WHERE kind = '' AND name = ''", "USING PRIMARY KEY"),
        ("SELECT max(name) FROM spend WHERE kind = 'day'", "USING PRIMARY KEY"),
        (
            "SELECT * FROM token_record WHERE session = '' AND series = 1 ORDER BY at DESC",
            "record_by_session",
        ),
        ("SELECT * FROM token_record WHERE series = 1 ORDER BY at DESC", "record_by_series"),
        ("SELECT * FROM token_record WHERE at >= 1 ORDER BY at DESC", "record_by_time"),
        ("SELECT * FROM fact_topic WHERE scope = 1 AND subject = ''", "autoindex_fact_topic_1"),
        ("SELECT id FROM fact_topic WHERE scope = 1 AND predicate = ''", "topic_by_predicate"),
        (
            "SELECT * FROM fact f WHERE topic = 1 AND f.functional AND f.superseded_at IS NULL",
            "fact_one_current",
        ),
        (
            "SELECT * FROM fact WHERE scope = 1 AND form = '' AND superseded_at IS NULL"
            " ORDER BY valid_from",
            "fact_by_object",
        ),
        ("SELECT * FROM fact WHERE scope = 1 ORDER BY learned_at DESC", "fact_by_learning"),
        ("SELECT * FROM fact WHERE session = 1 ORDER BY valid_from", "fact_by_session"),
        (
            "SELECT * FROM fact WHERE scope = 1 AND superseded_at IS NULL ORDER BY valid_from",
            "fact_current",
        ),
        ("SELECT * FROM fact WHERE superseded_by = ''", "fact_superseded"),
        ("SELECT fact FROM fact_claim WHERE id = ''", "sqlite_autoindex_fact_claim_1"),
        (
            "SELECT since FROM fact_claim WHERE topic = 1 ORDER BY since DESC, said_at DESC",
            "fact_claim_by_time",
        ),
        ("SELECT 1 FROM fact_claim WHERE topic = 1 AND until IS NOT NULL", "fact_claim_ended"),
    ],
)
def test_a_look_up_uses_its_index(query: str, index: str) -> None:
    db = sqlite3.connect(":memory:", isolation_level=None)
    migrate(db)

    plan = " ".join(row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {query}"))

    assert index in plan
    assert "TEMP B-TREE" not in plan


@pytest.mark.requirement("S-000-Store-01")
@pytest.mark.parametrize("table", ["run", "node", "delivery", "session"])
def test_a_state_that_is_none_is_refused_by_the_database_itself(table: str) -> None:
    db = sqlite3.connect(":memory:", isolation_level=None)
    migrate(db)
    columns = [row[1:3] for row in db.execute(f"PRAGMA table_info({table})")]
    values = ", ".join("1" if kind == "INTEGER" else "'odd'" for _, kind in columns)

    with pytest.raises(sqlite3.IntegrityError, match="CHECK"):
        db.execute(f"INSERT INTO {table} VALUES ({values})")


def test_a_column_that_is_missing_is_noticed() -> None:
    db = sqlite3.connect(":memory:", isolation_level=None)
    migrate(db)
    whole = columns_of(db)
    db.execute("ALTER TABLE run DROP COLUMN forgiven")

    assert whole == newest_columns()
    assert newest_columns() - columns_of(db) == {("run", "forgiven")}


@pytest.mark.parametrize("change", ["DELETE FROM audit", "UPDATE audit SET kind = ''"])
def test_the_audit_is_only_appended_to(change: str) -> None:
    db = sqlite3.connect(":memory:", isolation_level=None)
    migrate(db)
    db.execute("INSERT INTO audit VALUES (1, 0, 'k', 'a', '{}', 'h')")

    with pytest.raises(sqlite3.IntegrityError, match="only appended to"):
        db.execute(change)
