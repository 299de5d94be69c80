"""Workers reuse their tasks."""

import anyio

from gateway.web.socket import Workers


async def test_jobs_start_in_order_and_do_not_wait_for_each_other() -> None:
    workers = Workers(10)
    seen: list[str] = []
    gate, done = anyio.Event(), anyio.Event()

    async def slow(name: str) -> None:
        seen.append(name)
        await gate.wait()
        seen.append(f"{name} ended")

    async def quick(name: str) -> None:
        seen.append(name)
        if name == "d":
            done.set()

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            await group.start(_run, workers)
            assert workers.submit(slow, "a")
            assert workers.submit(quick, "b")
            assert workers.submit(quick, "c")
            assert workers.submit(quick, "d")
            await done.wait()
            gate.set()
            await workers.wait_until_idle()
            group.cancel_scope.cancel()

    assert seen == ["a", "b", "c", "d", "a ended"]


async def _run(workers: Workers, *, task_status: anyio.abc.TaskStatus[None]) -> None:
    await workers.run(task_status=task_status)


async def test_a_task_is_used_again() -> None:
    workers = Workers(10)
    tasks: set[int] = set()

    async def note() -> None:
        tasks.add(anyio.get_current_task().id)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            await group.start(_run, workers)
            for _ in range(50):
                assert workers.submit(note)
                await workers.wait_until_idle()
                await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()

    assert len(tasks) == 1


async def test_too_much_work_is_refused_and_not_queued() -> None:
    workers = Workers(2)
    gate = anyio.Event()

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            await group.start(_run, workers)
            assert [workers.submit(gate.wait) for _ in range(3)] == [True, True, False]
            gate.set()
            await workers.wait_until_idle()
            assert workers.submit(gate.wait)
            group.cancel_scope.cancel()


async def test_before_and_after_their_time_they_take_nothing() -> None:
    workers = Workers(2)
    assert not workers.submit(anyio.sleep, 0)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            await group.start(_run, workers)
            assert workers.submit(anyio.sleep_forever)
            group.cancel_scope.cancel()

    assert not workers.submit(anyio.sleep, 0)
    assert workers.busy == 0
