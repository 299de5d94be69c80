"""The cache of compiled code is ours alone."""

import os
from pathlib import Path

import anyio
from anyio import to_thread

from tests.fakes.sandbox import a_stage
from tests.fakes.wat import ECHO


async def test_the_cache_is_made_and_closed_to_others(tmp_path: Path) -> None:
    cache = tmp_path / "data" / "plugins"
    with anyio.fail_after(60):
        async with a_stage(cache, tmp_path) as stage:
            made = await to_thread.run_sync(cache.stat)
            await to_thread.run_sync(cache.chmod, 0o755)
            assert (await stage.run(await stage.load(ECHO))).status == "ok"
        async with a_stage(cache, tmp_path):
            again = await to_thread.run_sync(cache.stat)

    assert (made.st_mode & 0o777, again.st_mode & 0o777) == (0o700, 0o700)


async def test_no_process_is_started_before_it_is_needed(cache: Path, tmp_path: Path) -> None:
    with anyio.fail_after(60):
        async with a_stage(cache, tmp_path) as stage:
            assert stage.sandbox.pool._places[0].process is None


async def test_what_another_runtime_or_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    cache = tmp_path / "cache"

    def leave() -> None:
        for name in ("new-old", "new-young"):
            (cache / name).mkdir(parents=True)
        os.utime(cache / "new-old", (0, 0))
        for name in ("a-wasmtime-1.0.0-x86_64-1.cwasm", "installed.wasm"):
            (cache / name).write_bytes(b"")

    await to_thread.run_sync(leave)
    with anyio.fail_after(60):
        async with a_stage(cache, tmp_path) as stage:
            await stage.load(ECHO)

    left = await to_thread.run_sync(lambda: {path.name for path in cache.iterdir()})
    assert {"new-old", "a-wasmtime-1.0.0-x86_64-1.cwasm"}.isdisjoint(left)
    assert {"new-young", "installed.wasm"} < left
    assert sum(name.endswith(".cwasm") for name in left) == 1
