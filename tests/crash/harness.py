"""Clients that keep talking, a model that answers them, and a gateway that is killed and restarted."""

import contextlib
import itertools
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import TaskGroup
from websockets.exceptions import WebSocketException
from websockets.frames import Frame, Opcode

from tests.crash.accounting import Account, Audit, Record, account
from tests.crash.stages import STAGES, Stage, Trigger
from tests.fakes.client import Client, Disconnected, RpcError, connected
from tests.fakes.gateway import START_S, Command, Setup, spawned
from tests.fakes.model_server import Asked, ModelServer, Reply, scripted_server

SESSIONS, WORKERS = 8, 3  # conversations, and messages of one that are on their way at once
TOOL_EVERY = 4
LONG_S = 60.0  # for what has to come: the machine may be busy
STARTING_S = 0.7
LULL_S = 0.2


@dataclass(frozen=True)
class Plan:
    kills: int
    messages: int
    seed: int = 1
    configuration: str = ""  # besides the usual
    of: Sequence[Stage] = tuple(STAGES)

    def stages(self) -> Sequence[Stage]:
        """Every one of them in turn."""
        return list(itertools.islice(itertools.cycle(self.of), self.kills))


@dataclass
class Outcome:
    account: Account
    kills: Counter[Stage]
    starts: int
    model_calls: int
    asked_after_done: int  # model calls for a message whose `done` had been told
    seconds: float

    @property
    def is_valid(self) -> bool:
        return self.account.is_valid and not self.asked_after_done

    def report(self) -> str:
        kills = " ".join(f"{stage}:{count}" for stage, count in self.kills.items())
        return "\n".join(
            [
                f"{self.kills.total()} kills ({kills}), {self.starts} starts, "
                f"{self.model_calls} model calls, {self.seconds:.0f} s",
                self.account.table(),
                f"  {'model calls after `done` was told':44}{self.asked_after_done:>8}",
                "valid" if self.is_valid else "NOT VALID",
            ]
        )


@dataclass
class Harness:
    plan: Plan
    chance: random.Random
    records: list[Record] = field(default_factory=list)
    kills: Counter[Stage] = field(default_factory=Counter)
    starts: int = 0
    asked_after_done: int = 0
    trigger: Trigger = field(init=False)
    group: TaskGroup = field(init=False)
    _site: Command | None = None
    _up: anyio.Event = field(default_factory=anyio.Event)
    _progress: anyio.Event = field(default_factory=anyio.Event)
    _time: "itertools.count[int]" = field(default_factory=itertools.count)
    _by_name: dict[str, Record] = field(default_factory=dict)
    _by_run: dict[str, Record] = field(default_factory=dict)
    _talking: int = 0
    _silent: anyio.Event = field(default_factory=anyio.Event)
    _early: dict[str, list[Mapping[str, Any]]] = field(default_factory=dict)
    _is_over: bool = False

    @property
    def acknowledged(self) -> int:
        return sum(one.acked_at is not None for one in self.records)

    def __post_init__(self) -> None:
        self.trigger = Trigger(self._kill, self.chance)

    # the gateway

    def _kill(self) -> None:
        if self._up.is_set():
            self._up = anyio.Event()  # first, so that nobody dials the dead
        if self._site is not None:
            self._site.kill()

    @asynccontextmanager
    async def started(self, config: Path) -> AsyncIterator[Command]:
        async with spawned(config) as site:
            self._site = site
            self.starts += 1
            with anyio.fail_after(START_S):
                assert await site.ready(), (await site.said()).decode(errors="replace")[-3000:]
            self._up.set()
            yield site

    async def _killed_while_starting(self, config: Path) -> None:
        async with spawned(config) as site:
            self.starts += 1
            await anyio.sleep(self.chance.uniform(0, STARTING_S))
            site.kill()

    async def kill_again_and_again(self, config: Path) -> None:
        """Ends when all kills are done, with a gateway that was started once more."""
        each = self.plan.messages / max(1, self.plan.kills)
        for number, stage in enumerate(self.plan.stages()):
            if stage == "start":
                await self._killed_while_starting(config)
            else:
                async with self.started(config) as site:
                    # From here on: what three kills in a row hit would be set aside.
                    await self._accepted(max(self.acknowledged, int(each * number)) + int(each))
                    await self._strike(stage)
                    assert await site.exit_code() == -9, "it ended by itself"
            self.kills[stage] += 1

    async def _strike(self, stage: Stage) -> None:
        if stage == "any":
            await anyio.sleep(self.chance.uniform(0, 0.05))
            self._kill()
            return
        self.trigger.arm(stage)
        with anyio.fail_after(LONG_S):
            await self.trigger.fired.wait()

    async def _accepted(self, count: int) -> None:
        with anyio.fail_after(LONG_S):
            while self.acknowledged < count:
                self._progress = anyio.Event()
                await self._progress.wait()

    # the clients

    def _next(self, peer: str) -> Record | None:
        if self._is_over:
            return None
        number = len(self.records)
        kind = "tool" if number % TOOL_EVERY == 0 else "text"
        record = Record(f"{kind}-{number}", peer)
        self.records.append(record)
        self._by_name[record.name] = record
        return record

    def stop_talking(self) -> None:
        """What is on its way comes to its end; nothing new is begun."""
        self._is_over = True

    async def silence(self) -> None:
        """Waits until every talker is done."""
        await self._silent.wait()

    async def talk(self, peer: str) -> None:
        """One message after the other, each until its end, whatever happens to the gateway."""
        self._talking += 1
        await self._talk(peer)
        self._talking -= 1
        if not self._talking:
            self._silent.set()

    async def _talk(self, peer: str) -> None:
        record = self._next(peer)
        while record is not None:
            await self._up.wait()
            assert self._site is not None
            with contextlib.suppress(OSError, WebSocketException, EOFError, TimeoutError):
                async with connected(self._site.url, wait_s=LONG_S) as client:
                    record = await self._talk_on(client, record)

    async def _talk_on(self, client: Client, record: Record | None) -> Record | None:
        """Gives the message that was on its way when the connection ended."""
        client.hear = self._hear
        with contextlib.suppress(Disconnected):
            while record is not None:
                await self._bring(client, record)
                record = self._next(record.peer)
        return record

    async def _bring(self, client: Client, record: Record) -> None:
        """Raises Disconnected; then it is tried again on another connection."""
        try:
            if record.run_id is None:
                answer = await self._send(client, record)
                self._acknowledged(record, answer)
                live = not answer["duplicate"]
            else:
                live = False
            run_id = record.run_id
            assert run_id is not None
            if not live and not record.ends:
                await client.call("chat.resume", run_id=run_id, after_seq=record.last_seq)
            if not record.ends:
                await client.ended(run_id)
            if record.ends[-1].get("reason") == "superseded":
                await anyio.sleep(self.chance.uniform(0, LULL_S))  # or nobody is ever answered
        except RpcError as error:
            record.problems.append(f"refused: {error}")
        except TimeoutError:
            record.problems.append("nothing was heard of it for too long")

    def _acknowledged(self, record: Record, answer: Mapping[str, Any]) -> None:
        record.acknowledge(answer, next(self._time))
        run_id = answer["run_id"]
        self._by_run[run_id] = record
        for event in self._early.pop(run_id, ()):
            record.hear(event)
        self._progress.set()
        if not self.trigger.pull("S3"):
            self.trigger.pull_soon("S4", self.group)

    async def _send(self, client: Client, record: Record) -> Mapping[str, Any]:
        if self.trigger.armed == "S0":
            await self._send_half(client, record)
        if record.sent_at is None:
            record.sent_at = next(self._time)
        record.frames += 1
        if self.trigger.armed == "S1":
            await client.write(_chat_send(record))
            self.trigger.pull("S1")
        sent: Mapping[str, Any] = await client.call("chat.send", **_params(record))
        return sent

    async def _send_half(self, client: Client, record: Record) -> None:
        record.half_sent = True
        whole = Frame(Opcode.TEXT, _chat_send(record).encode()).serialize(mask=True)
        client.socket.transport.write(whole[: len(whole) // 2])
        self.trigger.pull("S0")
        with anyio.fail_after(LONG_S):
            await client.closed.wait()
        raise Disconnected

    def _hear(self, frame: Mapping[str, Any]) -> bool:
        """Every frame as it comes, before anything else happens; False: it got lost."""
        if "method" not in frame:
            is_ack = "matched_by" in (frame.get("result") or {})
            return not (is_ack and self.trigger.pull("S2"))
        event = frame["params"]
        record = self._by_run.get(event["run_id"])
        if record is None:  # its acknowledgement has come, but nobody has looked at it yet
            self._early.setdefault(event["run_id"], []).append(event)
        else:
            record.hear(event)
        if event["type"] == "content":
            self.trigger.pull("S6")
        if event["type"] == "done" and not self.trigger.pull("S8"):
            self.trigger.pull_soon("S11", self.group)
        return True

    # afterwards

    async def audit(self, peer: str, client: Client, found: dict[str, Audit]) -> None:
        """What the gateway tells of every message of a peer, by its run and by a copy of it."""
        for record in [one for one in self.records if one.peer == peer and one.ids]:
            copy = await client.call("chat.send", **_params(record))
            log: Sequence[Mapping[str, Any]] = ()
            with contextlib.suppress(RpcError, TimeoutError):
                run_id = str(record.run_id)
                await client.call("chat.resume", run_id=run_id, after_seq=0)
                log = await client.ended(run_id)
            found[record.name] = Audit(log, (copy["message_id"], copy["run_id"]))

    # the model

    def answer(self, asked: Asked) -> Reply:
        names = _unanswered(asked.body["messages"])
        name = names[-1]
        record = self._by_name[name]
        # A request may still be on its way when its message is superseded.
        if any(event.get("reason", "error") in {"answered", "merged"} for event in record.ends):
            self.asked_after_done += 1
        is_told = asked.body["messages"][-1]["role"] == "tool"
        if _follows_a_tool(asked.body["messages"]):
            self.trigger.pull("S7")
        self.trigger.pull("S5")
        if name.startswith("tool") and not is_told:
            return Reply("", calls=[(f"call-{asked.number}", "time", "{}")])
        for stage in ("S9", "S10"):
            if self.trigger.armed == stage:
                self.group.start_soon(self._pull_at_end, stage, asked)
        # Each answer is another one, so that two to one message can be told apart.
        pieces = [f"answer {asked.number} ", "to the message ", "called ", " ".join(names)]
        gates = {3: anyio.Event()} if self.trigger.armed == "S6" else {}
        return Reply(pieces, gates=gates)

    async def _pull_at_end(self, stage: Stage, asked: Asked) -> None:
        await asked.answered.wait()
        if stage == "S9":
            self.trigger.pull(stage)
        else:
            self.trigger.pull_soon(stage, self.group)


def _unanswered(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """The questions since the last answer."""
    names: list[str] = []
    for message in reversed(messages):
        if message["role"] == "assistant" and not message.get("tool_calls"):
            break
        if message["role"] == "user":
            names.insert(0, message["content"])
    return names


def _follows_a_tool(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Others may have said something between what came of it and now."""
    rest = itertools.takewhile(lambda m: m["role"] != "assistant", reversed(messages))
    return any(message["role"] == "tool" for message in rest)


def _params(record: Record) -> dict[str, object]:
    return {"content": record.name, "peer": record.peer, "idempotency_key": record.name}


def _chat_send(record: Record) -> str:
    """As a frame whose answer nobody waits for."""
    call = {"jsonrpc": "2.0", "id": "unread", "method": "chat.send", "params": _params(record)}
    return json.dumps(call)


async def history_of(client: Client, peer: str) -> list[dict[str, Any]]:
    """All of it, page by page, oldest first."""
    key = f"main:websocket:local:{peer}"
    messages: list[dict[str, Any]] = []
    more = True
    while more:
        before = {"before": messages[0]["id"]} if messages else {}
        page = await client.call("chat.history", session_key=key, limit=500, **before)
        messages, more = [*page["messages"], *messages], page["more"]
    return messages


async def run(plan: Plan, folder: Path) -> Outcome:
    """The whole of it; takes about a second a kill."""
    harness = Harness(plan, random.Random(plan.seed))
    began = anyio.current_time()
    peers = [f"p{number}" for number in range(SESSIONS)]
    async with scripted_server(harness.answer) as model, anyio.create_task_group() as group:
        harness.group = group
        config = await Setup(model.url, tools=("time",), rest=plan.configuration).written(folder)
        async with anyio.create_task_group() as talkers:
            for peer in peers * WORKERS:
                talkers.start_soon(harness.talk, peer)
            await harness.kill_again_and_again(config)
            harness.stop_talking()
            async with harness.started(config):
                await harness.silence()
        outcome = await _closed(harness, model, config, peers)
        group.cancel_scope.cancel()
    outcome.seconds = anyio.current_time() - began
    return outcome


async def _closed(
    harness: Harness, model: ModelServer, config: Path, peers: Sequence[str]
) -> Outcome:
    """The books are closed over what a last start finds on the disk."""
    audits: dict[str, Audit] = {}
    asked_before = len(model.requests)
    async with harness.started(config) as site, connected(site.url, wait_s=LONG_S) as client:
        async with anyio.create_task_group() as group:
            for peer in peers:
                group.start_soon(harness.audit, peer, client, audits)
        histories = {peer: await history_of(client, peer) for peer in peers}
    harness.asked_after_done += len(model.requests) - asked_before
    books = account(harness.records, audits, histories)
    return Outcome(
        books, harness.kills, harness.starts, len(model.requests), harness.asked_after_done, 0.0
    )
