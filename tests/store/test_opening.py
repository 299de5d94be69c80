"""A store is opened by its url, in a directory that nobody else has."""

from pathlib import Path

import anyio
import pytest

from gateway.domain.errors import DataDirInUse, StoreRefused
from gateway.store.opening import Owner, note_owner, open_store, read_owner
from tests.fakes.clock import FakeClock


@pytest.mark.parametrize("url", ["embedded", "memory"])
async def test_a_directory_in_use_is_refused_and_free_again_afterwards(
    tmp_path: Path, url: str
) -> None:
    async with open_store(url, tmp_path, clock=FakeClock()):
        with pytest.raises(DataDirInUse, match="process"):
            async with open_store(url, tmp_path, clock=FakeClock()):
                pass
    with anyio.fail_after(60):
        async with open_store(url, tmp_path, clock=FakeClock()) as stores:
            await stores.care.probe()


async def test_the_address_of_the_gateway_is_found_by_others(tmp_path: Path) -> None:
    with anyio.fail_after(60):
        async with open_store("memory", tmp_path, clock=FakeClock()):
            await note_owner(tmp_path, "http://127.0.0.1:7200")
            owner = await anyio.to_thread.run_sync(read_owner, tmp_path)

    assert isinstance(owner, Owner)
    assert owner.url == "http://127.0.0.1:7200"
    assert await anyio.to_thread.run_sync(read_owner, tmp_path) is None


async def test_an_unknown_url_names_those_that_are_known(tmp_path: Path) -> None:
    with pytest.raises(StoreRefused, match="'embedded' or 'memory'"):
        async with open_store("postgres://x", tmp_path, clock=FakeClock()):
            pass


async def test_memory_keeps_nothing(tmp_path: Path) -> None:
    async with open_store("memory", tmp_path, clock=FakeClock()):
        pass

    names = await anyio.to_thread.run_sync(lambda: {path.name for path in tmp_path.iterdir()})
    assert names == {"lock"}
