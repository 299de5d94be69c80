"""A gateway's side that says which worker it has, with a guest that never ends in it, and waits.

`python leaving.py CACHE FOLDER`
"""

import sys
from pathlib import Path

import anyio

from gateway.domain.plugins import PluginDef, PluginLimits
from tests.fakes.sandbox import a_stage, means
from tests.fakes.wat import handling

SPIN = handling(
    """(call $call (i32.const 0) (i32.const 2) (local.get 0) (local.get 1) (i32.const 48))
    (loop $on (br $on)) (unreachable)""",
    imports="""(import "exogate:plugin/host@1.0.0" "call"
      (func $call (param i32 i32 i32 i32 i32)))""",
    pieces='{{base}} (data (i32.const 0) "up")',
)


async def main(cache: Path, folder: Path) -> None:
    limits = PluginLimits(timeout_s=60, fuel=2**62)
    running = anyio.Event()

    async def up(text: str, plugin: PluginDef) -> str:
        running.set()
        return text

    world = means(functions={"up": up})
    async with a_stage(cache, folder, world) as stage, anyio.create_task_group() as group:
        guest = await stage.load(SPIN, "host_function:up", limits=limits)
        group.start_soon(stage.run, guest)
        await running.wait()
        sys.stdout.write(f"{stage.worker}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]), Path(sys.argv[2]))
