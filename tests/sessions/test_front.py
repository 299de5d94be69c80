"""What a front door may ask: runs live or ended, nodes by id or label, and a HEAD that moves."""

import pytest

from gateway.domain.errors import NotFound
from gateway.domain.inbox import RunRecord
from gateway.sessions.runs import LiveRun
from tests.fakes.model import ScriptedModel, StallingModel, says
from tests.fakes.store import open_memory
from tests.sessions.stage import staged
from tests.sessions.test_work import KEY


async def test_a_run_is_found_while_it_lives_and_after() -> None:
    stalling = StallingModel()
    async with open_memory() as stores, staged(stalling, stores) as stage:
        run_id = await stage.say("hi")
        await stalling.reached.wait()
        live = await stage.front.run(run_id)
        assert isinstance(live, LiveRun)
        await stage.front.abort(live, at_once=True)
        await stage.lanes.wait_idle()
        ended = await stage.front.run(run_id)
        with pytest.raises(NotFound):
            await stage.front.run("r_nowhere")

    assert isinstance(ended, RunRecord)
    assert ended.outcome == "cancelled"


async def test_head_moves_only_from_where_it_is_expected() -> None:
    async with open_memory() as stores, staged(ScriptedModel(says("ok")), stores) as stage:
        await stage.say("one")
        await stage.lanes.wait_idle()
        first = await stores.sessions.find_session(KEY)
        assert first is not None
        assert first.head is not None
        await stage.say("two")
        await stage.lanes.wait_idle()
        moved = await stores.sessions.move_head(KEY, first.head, expected=first.head)
        back = await stage.front.move_head(KEY, first.head, label="start")
        by_label = await stage.front.node(KEY, "start")
        with pytest.raises(NotFound):
            await stage.front.move_head(KEY, "nowhere")

    assert moved is False
    assert back == by_label.id == first.head
