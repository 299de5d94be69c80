"""A plugin's tool is executed at most once, unless the plugin says that a second call changes nothing."""

from pathlib import Path

import anyio
import pytest

from gateway.agent.output import CUT_OFF
from tests.fakes.client import connected, results_of
from tests.fakes.gateway import START_S, Setup, command
from tests.fakes.model_server import Reply, scripted_server
from tests.fakes.shop import PAYING, shop

pytestmark = pytest.mark.shared_store


@pytest.mark.parametrize(
    ("annotations", "times"),
    [
        ({}, 1),
        ({"readOnlyHint": False, "idempotentHint": False}, 1),
        ({"readOnlyHint": True}, 2),
        ({"idempotentHint": True}, 2),
    ],
)
async def test_kill_9_in_a_call_repeats_only_a_tool_whose_plugin_says_that_it_may_be_repeated(
    tmp_path: Path, annotations: dict[str, bool], times: int
) -> None:
    async with (
        shop(tmp_path, annotations) as books,
        scripted_server([PAYING, Reply("Done.")]) as model,
    ):
        setup = Setup(model.url, tools=("pay",), rest=books.rest)
        config = await setup.written(tmp_path)
        async with command(config) as gateway, connected(gateway.url) as client:
            run_id = (await client.send("Pay."))["run_id"]
            with anyio.fail_after(START_S):
                await books.books.wait_for(1)
            gateway.kill()
            await gateway.exit_code()
        async with command(config) as gateway, connected(gateway.url) as client:
            await client.call("chat.resume", run_id=run_id, after_seq=0)
            events = await client.ended(run_id)
            replay = await client.call("run.replay", run_id=run_id)

    assert books.paid == times
    [told] = results_of(events)
    assert (CUT_OFF in told) == (times == 1)
    assert ("paid" in told) == (times == 2)
    assert (events[-1]["response"], replay["divergence"]) == ("Done.", None)
