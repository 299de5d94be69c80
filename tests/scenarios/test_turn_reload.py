"""An agent's tree is edited while the gateway runs."""

from pathlib import Path

import anyio
import pytest

from tests.fakes.client import WAIT_S
from tests.fakes.model_server import Asked, Reply
from tests.scenarios.plots import echo_of
from tests.scenarios.plots_limits import calling
from tests.scenarios.stage import Scene, Stage, is_told, outline

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "gateway" / "agent" / "trees" / "default.bt"
ASK = "(llm-call "
FEWER = "(llm-call :budget 7 "


async def a_tree_of_ones_own(folder: Path) -> anyio.Path:
    mine = anyio.Path(folder / "mine.bt")
    text = await anyio.Path(SHIPPED).read_text(encoding="utf-8")
    assert text.count(ASK) == 1
    await mine.write_text(text, encoding="utf-8")
    return mine


async def heard_of(scene: Scene, event: str, count: int = 1) -> None:
    await scene.client.until_told(lambda told: [one["type"] for one in told].count(event) == count)


def allowed(asked: Asked) -> int:
    return int(asked.body["max_tokens"])


@pytest.mark.requirement("S-002-BT-11")
async def test_a_turn_ends_under_the_tree_that_it_began_with_and_the_next_has_the_new_one(
    tmp_path: Path,
) -> None:
    gate = anyio.Event()
    mine = await a_tree_of_ones_own(tmp_path)

    def script(asked: Asked) -> Reply:
        if is_told(asked):
            return Reply("Well.")
        return Reply("", calls=[echo_of(asked.number, "hello")], gate=gate)

    async with Stage("openai", str(mine), tmp_path).open(script, tools=("echo",)) as scene:
        run_id = (await scene.send("first"))["run_id"]
        with anyio.fail_after(WAIT_S):
            await scene.model.wait_for(1)
        await mine.write_text((await mine.read_text()).replace(ASK, FEWER))
        await heard_of(scene, "tree.reloaded")
        gate.set()
        await scene.ended(run_id)
        await scene.ask("second")

    before = allowed(scene.model.requests[0])
    assert [allowed(asked) for asked in scene.model.requests] == [before, before, 7, 7]
    assert [outline(scene.chunks(number))[-1] for number in (0, 1)] == ["done answered"] * 2


@pytest.mark.parametrize("bad", ["", "(tree", '(tree "x" (action nobody :fn "no.such"))'])
async def test_a_bad_new_version_changes_nothing_and_is_told(tmp_path: Path, bad: str) -> None:
    mine = await a_tree_of_ones_own(tmp_path)
    good = await mine.read_text()
    async with Stage("openai", str(mine), tmp_path).open([Reply("Well.")]) as scene:
        await mine.write_text(bad)
        await heard_of(scene, "tree.refused")
        problems = (await scene.client.call("status"))["problems"]
        await scene.ask("meanwhile")
        await mine.write_text(good.replace(ASK, FEWER))
        await scene.client.call("config.reload")
        healed = (await scene.client.call("status"))["problems"]
        await scene.ask("after")

    assert "mine.bt" in str(problems)
    assert healed == []
    assert outline(scene.chunks())[-1] == "done answered"
    assert [allowed(asked) for asked in scene.model.requests][1:] == [7]


async def test_a_tree_that_counts_fewer_turns_than_the_limit_stops_there_and_says_so(
    tmp_path: Path,
) -> None:
    mine = await a_tree_of_ones_own(tmp_path)
    text = await mine.read_text()
    assert text.count("(config max_iterations)") == 1
    await mine.write_text(text.replace("(config max_iterations)", "2"))
    async with Stage("openai", str(mine), tmp_path).open(calling, tools=("echo",)) as scene:
        await scene.ask("Go on for ever.")

    assert outline(scene.chunks())[-2:] == [
        "limit_reached: Maximum iterations reached. Saving partial response.",
        "done max_iterations partial",
    ]
    assert len(scene.model.requests) == 2
