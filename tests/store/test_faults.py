"""What SQLite reports becomes a sentence that says where and what to do."""

import errno
import sqlite3
from pathlib import Path

import pytest

from gateway.domain.errors import StoreRefused, StoreUnavailable
from gateway.store.faults import file_faults, opening_error, sentence


def failure(path: Path, statement: str) -> sqlite3.Error:
    db = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)
    with pytest.raises(sqlite3.Error) as caught:
        db.execute(statement)
    db.close()
    return caught.value


def test_a_read_only_file_is_unavailable(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    sqlite3.connect(path).execute("CREATE TABLE t (x)").connection.close()

    error = opening_error(failure(path, "DELETE FROM t"), "x.db")

    assert isinstance(error, StoreUnavailable)
    assert str(error) == "x.db cannot be written (read-only): check its owner, mode and mount"


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    path.write_text("notes " * 1000)

    error = opening_error(failure(path, "SELECT * FROM sqlite_master"), "x.db")

    assert isinstance(error, StoreRefused)
    assert "x.db is damaged" in str(error)
    assert "restore a backup" in str(error)


def test_a_table_that_is_not_as_it_should_be_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    sqlite3.connect(path).execute("CREATE TABLE t (x)").connection.close()

    error = opening_error(failure(path, "SELECT y FROM t"), "x.db")

    assert isinstance(error, StoreRefused)
    assert "no such column" in str(error)


def test_an_error_of_the_module_itself_has_a_sentence_too() -> None:
    assert sentence(sqlite3.InterfaceError("odd"), "x.db") == "x.db: odd"


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (errno.ENOSPC, "is full: free some space"),
        (errno.EDQUOT, "may not grow: free some space"),
        (errno.EFBIG, "may not grow: free some space"),
        (errno.EACCES, "read-only"),
        (errno.EROFS, "read-only"),
        (errno.EIO, "store.mark: went wrong"),
    ],
)
def test_a_failed_call_on_a_file_says_what_to_do(number: int, told: str) -> None:
    with pytest.raises(StoreUnavailable, match=told), file_faults("store.mark"):
        raise OSError(number, "went wrong")
