"""What a gateway was about to do when it died, stood still or was cut off is not done twice by another one."""

from pathlib import Path

import anyio
import pytest

pytest.importorskip("cbor2", reason="the extra `surrealdb` is not installed")

from gateway.agent.output import CUT_OFF
from tests.fakes.client import results_of
from tests.fakes.fleet import LEASE_S, fleet
from tests.fakes.model_server import Reply
from tests.fakes.shop import PAYING, shop
from tests.fakes.surreal import SurrealDatabase


@pytest.mark.parametrize("how", ["killed", "paused"])
@pytest.mark.parametrize(("annotations", "times"), [({}, 1), ({"readOnlyHint": True}, 2)])
async def test_a_tool_at_work_at_a_gateway_that_is_lost_is_called_again_only_if_it_may_be(
    tmp_path: Path,
    surreal_database: SurrealDatabase,
    annotations: dict[str, bool],
    times: int,
    how: str,
) -> None:
    async with (
        shop(tmp_path, annotations) as books,
        fleet(
            tmp_path,
            [PAYING, Reply("Done.")],
            surreal_database,
            None,
            "a",
            tools=("pay",),
            rest=books.rest,
        ) as nodes,
        nodes.client("a") as first,
    ):
        run_id = (await first.send("Pay."))["run_id"]
        with anyio.fail_after(20):
            await books.books.wait_for(1)
        await nodes.start("b")
        if how == "killed":
            nodes.nodes["a"].kill()
        else:
            nodes.stop("a")
        async with nodes.client("b") as second:
            await second.call("chat.resume", run_id=run_id, after_seq=0)
            events = await second.ended(run_id)
            if how == "paused":
                nodes.go_on("a")
                assert (await first.ended(run_id))[-1]["response"] == "Done."
                await anyio.sleep(LEASE_S)

    [told] = results_of(events)
    assert events[-1]["response"] == "Done."
    assert (CUT_OFF in told, "paid" in told) == (times == 1, times == 2)
    assert books.paid == times
