"""A run in a task group: it sleeps until something happens, and leaves no task behind."""

from collections.abc import Mapping

import anyio
import pytest

from gateway.control.trees.calls import Call
from gateway.control.trees.runner import Runner
from gateway.control.trees.status import FAILURE, SUCCESS
from tests.control.trees.stage import Stage
from tests.fakes.clock import FakeClock

LIMIT_S = 5


def runner(stage: Stage, text: str, clock: FakeClock | None = None, **inputs: object) -> Runner:
    return Runner(stage.plan(text), clock or FakeClock(), roots=stage.roots, inputs=inputs)


@pytest.mark.requirement("S-002-BT-14")
async def test_an_async_function_is_ticked_when_it_begins_and_when_it_is_done() -> None:
    stage = Stage()
    release = anyio.Event()

    async def ask(call: Call) -> bool:
        stage.log.append(call.name)
        await release.wait()
        return True

    stage.offer("ask", ask)
    run = runner(stage, "(sequence (action ask) (succeed))")
    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as group:
            group.start_soon(run.drive)
            await anyio.wait_all_tasks_blocked()
            assert run.run.ticks == 1
            release.set()

    assert (run.run.ticks, stage.log) == (2, ["ask"])


async def test_a_run_of_three_calls_takes_four_ticks() -> None:
    stage = Stage()

    async def ask(_call: Call) -> None:
        await anyio.lowlevel.checkpoint()

    stage.offer("ask", ask)
    run = runner(stage, "(repeat :max 3 (sequence (action ask) (succeed)))")
    with anyio.fail_after(LIMIT_S):
        outcome = await run.drive()

    assert (outcome.status, run.run.ticks) == (SUCCESS, 4)


async def test_an_exception_of_an_async_function_is_its_failure() -> None:
    stage = Stage()

    async def ask(_call: Call) -> None:
        raise OSError("no route")

    stage.offer("ask", ask)
    with anyio.fail_after(LIMIT_S):
        outcome = await runner(stage, "(action ask)").drive()

    assert (outcome.status, outcome.reason) == (FAILURE, "done")
    assert outcome.failure is not None
    assert outcome.failure["message"] == "no route"


async def test_an_interrupt_cancels_the_task_and_waits_for_its_clean_up() -> None:
    stage = Stage()
    stage.logs("clean")

    async def ask(_call: Call) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.lowlevel.checkpoint()
            stage.log.append("closed")

    stage.offer("ask", ask)
    run = runner(stage, '(tree "t" (action ask) :finally (action clean))')
    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as group:
            group.start_soon(run.drive)
            await anyio.wait_all_tasks_blocked()
            run.interrupt("the user")

    assert stage.log == ["closed", "clean"]
    assert run.run.outcome is not None
    assert run.run.outcome.detail == "the user"


async def test_a_halted_task_is_over_before_its_next_generation_begins() -> None:
    stage = Stage()
    alive: list[int] = []
    began = 0

    async def ask(_call: Call) -> None:
        nonlocal began
        began += 1
        alive.append(began)
        assert len(alive) == 1
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.lowlevel.checkpoint()
            alive.clear()

    stage.offer("ask", ask)
    clock = FakeClock()
    run = runner(stage, "(retry :max 3 (timeout 2s (action ask)))", clock)
    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as group:
            group.start_soon(run.drive)
            for _ in range(3):
                await anyio.wait_all_tasks_blocked()
                clock.move(2)

    assert (began, alive) == (3, [])


async def test_cancelling_the_driver_still_runs_the_end() -> None:
    stage = Stage()

    async def ask(_call: Call) -> None:
        await anyio.sleep_forever()

    async def clean(call: Call) -> None:
        await anyio.lowlevel.checkpoint()
        stage.log.append(call.name)

    stage.offer("ask", ask)
    stage.offer("clean", clean)
    run = runner(stage, '(tree "t" (action ask) :finally (action clean))')
    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as group:
            group.start_soon(run.drive)
            await anyio.wait_all_tasks_blocked()
            group.cancel_scope.cancel()

    assert stage.log == ["clean"]
    assert run.run.outcome is not None
    assert run.run.outcome.detail == "cancelled"


async def test_an_end_that_hangs_is_cut() -> None:
    stage = Stage()

    async def hang(_call: Call) -> None:
        await anyio.sleep_forever()

    stage.offer("hang", hang)
    plan = stage.plan('(tree "t" (succeed) :finally (action hang))')
    run = Runner(plan, FakeClock(), ending_s=0.01)
    with anyio.fail_after(LIMIT_S):
        outcome = await run.drive()

    assert (outcome.status, outcome.reason) == (SUCCESS, "done")


async def test_timers_wake_a_run_and_nothing_else_does() -> None:
    stage = Stage()
    clock = FakeClock()
    run = runner(stage, "(sequence (wait 3s) (wait 4s))", clock)
    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as group:
            group.start_soon(run.drive)
            for seconds in (3, 4):
                await anyio.wait_all_tasks_blocked()
                clock.move(seconds)

    assert (clock.slept, run.run.ticks) == ([3, 4], 3)


async def test_a_write_of_a_task_to_a_watched_key_stops_its_neighbour() -> None:
    stage = Stage()

    async def warn(call: Call) -> None:
        call.write("ok", False)
        await anyio.sleep_forever()

    stage.offer("warn", warn, writes={"ok": "bool"})
    text = '(tree "t" :blackboard-schema {:ok true} (guard "ok" (action warn)))'
    with anyio.fail_after(LIMIT_S):
        outcome = await runner(stage, text).drive()

    assert outcome.status is FAILURE


async def test_events_go_to_whoever_listens() -> None:
    stage = Stage()
    heard: list[tuple[str, Mapping[str, object]]] = []
    run = Runner(
        stage.plan('(emit "a.b" {:n 1})'),
        FakeClock(),
        emit=lambda event, payload: heard.append((event, payload)),
    )
    with anyio.fail_after(LIMIT_S):
        await run.drive()

    assert heard == [("a.b", {"n": 1})]


async def test_items_of_a_loop_run_side_by_side() -> None:
    stage = Stage()
    together = 0
    most = 0

    async def work(call: Call) -> None:
        nonlocal together, most
        together += 1
        most = max(most, together)
        await anyio.lowlevel.checkpoint()
        together -= 1
        call.give(call.values[0])

    stage.offer("tool-call", work)
    run = runner(
        stage,
        '(tree "t" :blackboard-schema {:calls [] :results []} '
        "(for-each $calls :as call :parallel 3 :collect $results (tool-call $call)))",
        calls=list(range(7)),
    )
    with anyio.fail_after(LIMIT_S):
        await run.drive()

    assert most == 3
    assert run.run.snapshot()["results"] == list(range(7))
