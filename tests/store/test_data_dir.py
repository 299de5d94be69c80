"""A data directory belongs to one process, and its mark tells what was acknowledged."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.domain.errors import DataDirInUse, StoreRefused, StoreUnavailable
from gateway.store.opening import Owner, locked, make_private, read_owner, write_owner
from gateway.store.sqlite import require_acknowledged
from gateway.store.writer import Mark, Progress


def test_a_directory_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "data"
    make_private(path)
    assert path.stat().st_mode & 0o777 == 0o700

    path.chmod(0o755)
    make_private(path)

    assert path.stat().st_mode & 0o777 == 0o700


def test_a_file_in_its_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")

    with pytest.raises(StoreUnavailable, match="data"):
        make_private(tmp_path / "data")


HOLDING = """
import sys
from pathlib import Path
from gateway.store.opening import locked, write_owner
with locked(Path(sys.argv[1])):
    write_owner(Path(sys.argv[1]), url="http://127.0.0.1:7200")
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDING, str(tmp_path)],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"
    yield process
    process.kill()
    process.communicate()


def test_a_second_process_is_told_who_has_it_and_where(
    tmp_path: Path, holder: "subprocess.Popen[str]"
) -> None:
    with pytest.raises(DataDirInUse) as refused, locked(tmp_path):
        pass

    assert f"process {holder.pid} (http://127.0.0.1:7200)" in str(refused.value)
    assert read_owner(tmp_path) == Owner(holder.pid, "http://127.0.0.1:7200")


def test_a_killed_owner_owns_nothing(tmp_path: Path, holder: "subprocess.Popen[str]") -> None:
    holder.kill()
    holder.wait(5)

    assert read_owner(tmp_path) is None
    with locked(tmp_path):
        assert read_owner(tmp_path) == Owner(os.getpid(), None)


def test_an_address_replaces_a_longer_one_whole(tmp_path: Path) -> None:
    with locked(tmp_path):
        write_owner(tmp_path, url="http://a-long-name.example:7200")
        write_owner(tmp_path, url="http://b:1")

        assert read_owner(tmp_path) == Owner(os.getpid(), "http://b:1")
    assert read_owner(tmp_path) is None


def test_nobody_owns_a_directory_that_is_not_there(tmp_path: Path) -> None:
    assert read_owner(tmp_path / "none") is None


def test_a_mark_comes_back_as_it_was_written(tmp_path: Path) -> None:
    mark = Mark(tmp_path)
    before = mark.read()
    mark.write(2**40, 7)
    mark.close()
    again = Mark(tmp_path)

    assert (before, again.read()) == (Progress(), Progress(2**40, 7))
    again.close()


@pytest.mark.parametrize("content", [b"x", b"\0" * 15, b"\0" * 17])
def test_a_mark_of_another_size_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "store.mark").write_bytes(content)
    mark = Mark(tmp_path)

    with pytest.raises(StoreRefused, match=r"store\.mark is damaged"):
        mark.read()

    mark.close()


@pytest.mark.parametrize(
    ("held", "missing"),
    [
        (Progress(5, 5), None),
        (Progress(9, 9), None),
        (Progress(3, 5), "2 accepted"),
        (Progress(5, 1), "4 commits"),
    ],
)
def test_a_database_may_be_ahead_of_its_mark_but_not_behind(
    held: Progress, missing: str | None
) -> None:
    if missing is None:
        require_acknowledged(held, Progress(5, 5), "store.db")
    else:
        with pytest.raises(StoreRefused, match=missing):
            require_acknowledged(held, Progress(5, 5), "store.db")
