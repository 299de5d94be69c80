"""An older database becomes the newest one, however often it is interrupted."""

import sqlite3

import pytest

from gateway.store.schema import (
    MIGRATIONS,
    VERSION,
    columns_of,
    migrate,
    newest_columns,
    version_of,
)


def shape(db: sqlite3.Connection) -> list[tuple[str, str]]:
    return db.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()


@pytest.fixture
def newest() -> list[tuple[str, str]]:
    db = sqlite3.connect(":memory:", isolation_level=None)
    migrate(db)
    return shape(db)


@pytest.mark.requirement("S-000-Store-03")
@pytest.mark.parametrize("version", range(VERSION + 1))
def test_every_version_becomes_the_newest(newest: list[tuple[str, str]], version: int) -> None:
    db = sqlite3.connect(":memory:", isolation_level=None)
    for step in MIGRATIONS[:version]:
        db.executescript(step)
    db.execute(f"PRAGMA user_version = {version}")

    migrate(db)

    assert (version_of(db), shape(db)) == (VERSION, newest)


@pytest.mark.requirement("S-000-Store-03")
@pytest.mark.parametrize("version", range(VERSION))
def test_a_step_that_ran_without_its_number_may_run_again(
    newest: list[tuple[str, str]], version: int
) -> None:
    db = sqlite3.connect(":memory:", isolation_level=None)
    for step in MIGRATIONS[: version + 1]:
        db.executescript(step)
    db.execute(f"PRAGMA user_version = {version}")

    migrate(db)

    assert (version_of(db), shape(db)) == (VERSION, newest)


@pytest.mark.requirement("S-003-Index-01", "S-000-Store-04")
@pytest.mark.parametrize(
    ("query", "index"),
    [
        ("SELECT * FROM session WHERE key = ''", "sqlite_autoindex_session_1"),
        ("SELECT * FROM session WHERE agent = '' ORDER BY updated_at DESC", "session_by_agent"),
        ("SELECT * FROM session ORDER BY updated_at DESC", "session_by_time"),
        ("SELECT * FROM run WHERE finished_at IS NULL ORDER BY id", "run_unfinished"),
        ("SELECT * FROM run WHERE log IS NOT NULL AND finished_at < 5", "run_with_log"),
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
