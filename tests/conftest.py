"""What every test stands on."""

import asyncio
import gc
import importlib
import inspect
import itertools
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import httpx2  # noqa: F401  # when first imported it reads its metadata from the disk, also on a loop
import pytest
from blockbuster import BlockBuster, blockbuster_ctx
from hypothesis import settings
from pydantic import TypeAdapter

from tests import forms
from tests.fakes.compiled import SHELF, one_shelf_for_all_workers  # noqa: F401  # a fixture
from tests.fakes.surreal import SurrealDatabase, SurrealServer, running_surreal, surreal_binary

TypeAdapter(int)  # the first one looks for plugins of pydantic on the disk, also on a loop

collect_ignore = ["oracles"]  # run by tests/oracles/run, in an environment of their own

BENCH = Path(__file__).parent / "bench"

# What works on a database in memory, which never waits for a disk.
MEMORY = {"_run", "open_surreal"}

# The test runner's own way into the loop, one task a fixture and test.
RUNNER = "TestRunner._call_in_runner_task"


def _name(task: "asyncio.Task[object]") -> str:
    return getattr(task.get_coro(), "__qualname__", task.get_name())


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--long", action="store_true", help="every case of the tests that have a bounded form too"
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves the benchmarks to a step of their own: `pytest tests/bench`."""
    is_named = any("bench" in arg for arg in config.args) or config.getoption("--long")
    return None if is_named or collection_path != BENCH else True


def pytest_configure(config: pytest.Config) -> None:
    forms.register()
    settings.load_profile("long" if config.getoption("--long") else "bounded")
    # What tests/__init__.py does for this process, for its children.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # noqa: TID251  # of this process and its children


def pytest_collection(session: pytest.Session) -> None:
    """Each worker begins with other modules: what one of them has compiled, the others find."""
    worker = getattr(session.config, "workerinput", None)
    if worker is not None:
        gc.disable()
        root = session.config.rootpath
        found = sorted(
            file.relative_to(root).with_suffix("")
            for arg in session.config.args
            for file in (root / arg).rglob("test_*.py")
            if file.parent.name not in collect_ignore
        )
        first = len(found) * int(worker["workerid"][2:]) // worker["workercount"]
        for file in (*found[first:], *found[:first]):
            # What is wrong with a module is told when it is collected.
            with suppress(Exception, pytest.skip.Exception):
                importlib.import_module(".".join(file.parts))  # noqa: TID251  # as pytest does


def pytest_collection_finish() -> None:
    """Nothing of what was imported and collected is garbage: no collection looks through it again."""
    gc.freeze()
    gc.enable()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def surreal_server() -> Iterator[SurrealServer]:
    """One for all tests of a process. A test that stops it has its own: `own_surreal_server`."""
    with running_surreal(surreal_binary()) as server:
        yield server


@pytest.fixture
def own_surreal_server() -> Iterator[SurrealServer]:
    with running_surreal(surreal_binary()) as server:
        yield server


@pytest.fixture
def cache() -> Path:
    """What is compiled once is compiled for all tests."""
    return SHELF.folder


_databases = itertools.count(1)


@pytest.fixture
def surreal_database(surreal_server: SurrealServer) -> SurrealDatabase:
    return SurrealDatabase(surreal_server.url, "tests", f"test{next(_databases)}")


@pytest.fixture
def emptied_database(surreal_server: SurrealServer) -> SurrealDatabase:
    """Without a row. Its tables are those of the test before, which did not change them."""
    return surreal_server.empty("emptied")


@pytest.fixture
async def no_task_is_left_behind() -> AsyncIterator[None]:
    before = asyncio.all_tasks()
    yield
    running = asyncio.all_tasks() - before - {asyncio.current_task()}
    left = {_name(task) for task in running if not task.done()} - {RUNNER}
    assert not left, f"these tasks outlived the test: {sorted(left)}"


@pytest.fixture(autouse=True)
def tidy(request: pytest.FixtureRequest) -> None:
    """An async test is watched for tasks that outlive it."""
    if inspect.iscoroutinefunction(getattr(request.node, "obj", None)):
        request.getfixturevalue("no_task_is_left_behind")


@pytest.fixture(scope="session", autouse=True)
def nothing_blocks_the_loop() -> Iterator[BlockBuster]:
    """One for all tests of a process: it wraps some sixty functions."""
    with blockbuster_ctx() as guard:
        for name, function in guard.functions.items():
            if name.startswith(("sqlite3", "threading.Lock")):
                function.can_block_in("tests/fakes/store.py", {"_done", "read"})
                function.can_block_in("gateway/store/surreal.py", MEMORY)
                function.can_block_in("gateway/store/surreal_schema.py", {"rows_in_memory"})
                function.can_block_in("gateway/store/turns.py", {"_add", "_change_index"})
        yield guard
