"""Drives a run in a task group: sleeps until something happens, and ends what it has started."""

import logging
from collections.abc import Callable, Mapping

import anyio
from anyio.abc import TaskGroup

from gateway.control.trees.blackboard import Emit
from gateway.control.trees.calls import Call, Pending
from gateway.control.trees.plan import NodePlan, TreePlan
from gateway.control.trees.registry import Act
from gateway.control.trees.run import Host, Outcome, Run
from gateway.domain.ports import Clock

log = logging.getLogger(__name__)

GRACE_S = 2.0  # for a leaf that was halted


class Runner:
    """For one run. Functions of leaves may be async; each call is a task of its own."""

    def __init__(
        self,
        plan: TreePlan,
        clock: Clock,
        *,
        roots: Mapping[str, object] | None = None,
        emit: Emit = lambda event, payload: None,
        inputs: Mapping[str, object] | None = None,
        ending_s: float = 5.0,  # for `:finally`
    ) -> None:
        self._clock, self._ending_s = clock, ending_s
        self._event = anyio.Event()
        self._group: TaskGroup | None = None
        self._halted: list[anyio.Event] = []
        host = Host(
            now=clock.monotonic,
            roots=roots or {},
            emit=emit,
            find_act=self._find_act,
            woken=lambda: self._event.set(),  # the event of that time
        )
        self.run = Run(plan, host, inputs)

    def interrupt(self, reason: str) -> None:
        """Halts the tree; `drive` then ends with `:finally` and this reason."""
        self.run.interrupt(reason)

    async def drive(self) -> Outcome:
        """To the end. If it is cancelled itself, `:finally` still has its time."""
        try:
            async with anyio.create_task_group() as group:
                await self._advance(group, lambda: self.run.is_ending)
        finally:
            self.run.interrupt("cancelled")
            with anyio.move_on_after(self._ending_s, shield=True):
                async with anyio.create_task_group() as group:
                    await self._advance(group, lambda: False)
            self.run.give_up()
        assert self.run.outcome is not None
        return self.run.outcome

    async def _advance(self, group: TaskGroup, is_enough: Callable[[], bool]) -> None:
        self._group = group
        while not is_enough() and not self.run.step():
            await self._cleaned_up()
            if self.run.ground.is_awake:
                await anyio.lowlevel.checkpoint()
            elif not is_enough():
                await self._woken()
        group.cancel_scope.cancel()

    async def _woken(self) -> None:
        self._event = anyio.Event()
        if self.run.ground.is_awake:
            return
        deadline = self.run.next_deadline()
        if deadline is None:
            await self._event.wait()
            return
        async with anyio.create_task_group() as waiting:
            waiting.start_soon(self._ring, deadline - self._clock.monotonic(), self._event)
            await self._event.wait()
            waiting.cancel_scope.cancel()

    async def _ring(self, seconds: float, event: anyio.Event) -> None:
        await self._clock.sleep(max(seconds, 0.0))
        event.set()

    async def _cleaned_up(self) -> None:
        """What was halted is over before the next tick, so that no two generations overlap."""
        if not self._halted:
            return
        halted, self._halted = self._halted, []
        with anyio.move_on_after(GRACE_S) as scope:
            for done in halted:
                await done.wait()
        if scope.cancelled_caught:
            log.warning("tree.leaf_stays", extra={"tree": self.run.plan.name})

    def _find_act(self, plan: NodePlan) -> Act | None:
        offered = plan.offered
        if offered is None or not offered.is_async:
            return offered.act if offered else None
        return lambda call: self._start(call, offered.act)

    def _start(self, call: Call, act: Act) -> Pending:
        assert self._group is not None
        scope, done = anyio.CancelScope(), anyio.Event()

        def halt() -> None:
            scope.cancel()
            self._halted.append(done)

        pending = call.pending(halt)
        self._group.start_soon(self._work, call, act, pending, scope, done)
        return pending

    async def _work(
        self, call: Call, act: Act, pending: Pending, scope: anyio.CancelScope, done: anyio.Event
    ) -> None:
        try:
            with scope:
                pending.complete(await act(call))  # type: ignore[misc]  # only async ones get here
        except Exception as error:  # noqa: BLE001  # it is the leaf's failure, told at the next tick
            pending.complete(error)
        finally:
            done.set()
