"""Plugins that were compiled before, by whichever worker of the test run came first."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio
import pytest
from anyio import to_thread

from gateway.sandbox.cache import CompileCache

PLUGINS = Path(__file__).parents[2] / "plugins"
USUAL = ("echo", "calc", "time", "notes")


@dataclass
class Shelf:
    folder: Path = Path()


SHELF = Shelf()


@pytest.fixture(scope="session", autouse=True)
def one_shelf_for_all_workers(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> None:
    own = tmp_path_factory.getbasetemp()
    is_worker = hasattr(request.config, "workerinput")
    SHELF.folder = (own.parent if is_worker else own) / "compiled"
    SHELF.folder.mkdir(mode=0o700, exist_ok=True)


async def compiled_before(plugins: Sequence[Path], data: Path) -> None:
    """A gateway on this data need not compile these plugins: no test waits for that twice."""
    compiling = await to_thread.run_sync(CompileCache, SHELF.folder)
    for path in plugins:
        made = await compiling.compile(path)
        await to_thread.run_sync(_take_over, made.path, data / "plugins")


def compiled(data: Path, *plugins: str | Path) -> Path:
    """The same for files and for bundled plugins, outside of a loop."""
    files = [PLUGINS / one / "tool.wasm" if isinstance(one, str) else one for one in plugins]
    anyio.run(partial(compiled_before, files, data))
    return data


def _take_over(made: Path, folder: Path) -> None:
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    for one in (made, made.with_suffix(".json")):
        if not (folder / one.name).exists():
            shutil.copyfile(one, folder / one.name)
