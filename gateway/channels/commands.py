"""Chat commands: the gateway executes and answers them without a model call."""

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, get_args

from gateway.budgets import LiveBudgets
from gateway.channels.access import MOST_LISTED, AccessControl, Command
from gateway.channels.adapters import Incoming
from gateway.channels.intake import address_of
from gateway.codec import decode
from gateway.domain.agents import Address, AgentDef, speaker
from gateway.domain.budgets import Limit, Scope, Tally, day_of, in_unit
from gateway.domain.channels import ChannelDef, Pairing
from gateway.domain.errors import Busy, NoRoute, NotFound, NotOfProject
from gateway.domain.facts import Fact, FactQuery, Recalled, fact_view
from gateway.domain.ids import AgentId, SessionKey
from gateway.domain.inbox import QueueMode
from gateway.domain.ports import FactStore, Ledger
from gateway.memory.context import context_report
from gateway.memory.recall import Recall
from gateway.sessions.intake import Front
from gateway.sessions.lanes import SessionQueues
from gateway.sessions.runs import LiveRun

MOST_FACTS = 20  # the newest ones
MOST_READ = 5_000
MOST_FOUND = 10
LONGEST_SAID = 200
MODES: tuple[QueueMode, ...] = get_args(QueueMode)
ALIASES: Mapping[str, str] = {"reset": "new"}
ALONE = frozenset({"new", "stop", "status", "usage", "context", "help", "whoami"})
UNROUTED = "No agent answers here."
UNTIL = "This applies to this chat until `/new`"
HELP = """\
- `/new` starts a new conversation; facts about you are kept
- `/stop` stops the running answer and the queued messages
- `/status` shows agent, model, queue and budget
- `/usage` shows the usage
- `/model [NAME]` shows the models, or sets the model of this chat
- `/context` shows the size of the last context
- `/memory [WORDS]` shows the known facts, or searches them
- `/queue [MODE]` shows or sets how messages are queued while an answer is running
- `/pair [list|approve CODE|deny CODE]` manages who may talk to me (owners, in a direct chat)
- `/whoami` shows your ids
- `/help` shows this list"""
PAIR_USAGE = "Write `/pair list`, `/pair approve CODE` or `/pair deny CODE`."


@dataclass(frozen=True, slots=True)
class _Invocation:
    """One command of a sender in a session."""

    argument: str
    at: Address
    key: SessionKey
    agent: AgentDef
    is_owner: bool


@dataclass(frozen=True, slots=True)
class ChatCommands:
    """Executes commands. `settled` waits until all turns of a session are indexed. `shared` are the
    agents whose facts belong to everyone who talks to them."""

    front: Front
    spending: Ledger
    budgets: LiveBudgets
    facts: FactStore
    recall: Recall
    settled: Callable[[SessionKey], Awaitable[None]]
    shared: Set[AgentId]
    access: AccessControl

    async def run(self, command: Command, channel: ChannelDef, message: Incoming) -> str:
        """Executes a command, whose permission AccessControl has checked, and returns the answer."""
        name, at = ALIASES.get(command.name, command.name), address_of(channel, message)
        if name in ALONE and command.argument:
            return f"Nothing was done: `/{name}` takes no argument. `/help` shows all commands."
        if name == "help":
            return HELP
        if name == "whoami":
            return self._whoami(at)
        if name == "pair":
            return await self._pair(at, command.argument)
        try:
            key = self.front.router.resolve(at).session_key
        except (NoRoute, NotOfProject):
            return UNROUTED
        acts = {
            "new": self._new, "stop": self._stop, "status": self._status, "usage": self._usage,
            "model": self._model, "context": self._context, "memory": self._memory,
            "queue": self._queue,
        }  # fmt: skip
        known = None
        if message.kind == "direct":
            known = await self.access.find(channel.name, channel.account, message.sender.id)
        is_owner = known is not None and known.is_owner
        asked = _Invocation(command.argument, at, key, self.front.agents[key.agent], is_owner)
        return await acts[name](asked)

    @property
    def _for_now(self) -> str:
        is_kept = self.front.intake.sharing is not None
        return f"{UNTIL}." if is_kept else f"{UNTIL} or a restart of the gateway."

    @property
    def _queues(self) -> SessionQueues:
        return self.front.intake.queues

    async def _new(self, asked: _Invocation) -> str:
        await self.front.start_over(asked.key)
        await self.front.choose(asked.key, model=None, mode=None)
        return "Your next message starts a new conversation."

    async def _stop(self, asked: _Invocation) -> str:
        count = await self.front.stop_all(asked.key)
        return f"Stopped: {_count(count, 'message')}." if count else "No answer is running."

    async def _status(self, asked: _Invocation) -> str:
        key, record = asked.key, await self.front.sessions.find_session(asked.key)
        running, queued = await self.front.load(key)
        lines = [
            f"Agent `{key.agent}`, model `{self._model_of(asked)}`",
            f"Queue `{self._queues.mode(key)}`: {running} running, {queued} queued",
        ]
        if record is not None:
            lines.append(f"{_count(record.message_count, 'message')} in this chat so far")
        if (report := await self._last_context(key)) is not None:
            lines.append(f"The last context had {_share(report)}")
        return f"{_bullets(lines)}\n{await self._usage(asked)}"

    async def _usage(self, asked: _Invocation) -> str:
        """Lists the usage; only owners see the usage of shared scopes."""
        names = {Scope("session", str(asked.key)): "This chat"}
        if asked.is_owner:
            day = day_of(self.front.clock.now())
            names |= {
                Scope("agent", str(asked.key.agent)): f"Agent `{asked.key.agent}`",
                Scope("day", day): "Today, in total",
                Scope("month", day[:7]): "This month, in total",
            }
        tallies = await self.spending.tallies(tuple(names))
        return _bullets(
            [
                f"{names[one.scope]}: {row}"
                for one in tallies
                for row in _spent(one, self.budgets.now.limit(one.scope, one.raised))
            ]
        )

    async def _model(self, asked: _Invocation) -> str:
        name, models = asked.argument, _models(asked.agent)
        listed = ", ".join(f"`{one}`" for one in models)
        if not name:
            current = self._model_of(asked)
            return f"The model is `{current}`; available: {listed}. `/model NAME` sets another."
        if name not in {"default", *models}:
            return f"Nothing was changed: there is no such model; available: {listed}."
        model = None if name == "default" else name
        await self.front.choose(asked.key, model=model)
        if model is None:
            return f"The model is `{self._model_of(asked)}` again, unless your settings differ."
        return f"The model is `{name}` from your next message on. {self._for_now}"

    def _model_of(self, asked: _Invocation) -> str:
        return self._queues.choice(asked.key).model or asked.agent.model

    async def _context(self, asked: _Invocation) -> str:
        report = await self._last_context(asked.key)
        if report is None:
            return "There is no context of an answer in this chat."
        parts = [f"{one['kind']}: {one['tokens']:,}" for one in report["parts"] if one["tokens"]]
        return f"The last context had {_share(report)}:\n\n{_bullets(parts)}"

    async def _last_context(self, key: SessionKey) -> Mapping[str, Any] | None:
        """Returns the context report of the last answer; None if there is no answer, or no report."""
        record = await self.front.sessions.find_session(key)
        if record is None or record.head is None:
            return None
        try:
            node = await self.front.node(key, record.head)
            run = await self.front.run(node.run_id)
        except NotFound:  # an imported turn has no run
            return None
        summary = {} if isinstance(run, LiveRun) else decode(run.summary or "{}")
        kept = summary.get("context") if isinstance(summary, dict) else None
        return context_report(node.run_id, kept) if isinstance(kept, dict) else None

    async def _memory(self, asked: _Invocation) -> str:
        await self.settled(asked.key)
        seen = fact_view(asked.key, asked.at.sender, is_shared=asked.key.agent in self.shared)
        if not asked.argument:
            facts = await self.facts.select_facts(FactQuery(seen, limit=MOST_READ))
            return _bullets(map(_fact, facts[-MOST_FACTS:])) or "No facts are known yet."
        found = await self.recall.of(asked.argument, asked.key, seen, limit=MOST_FOUND)
        return _bullets(map(_found, found)) or "Nothing was found."

    async def _queue(self, asked: _Invocation) -> str:
        queues, key = self._queues, asked.key
        mode = next((one for one in MODES if one == asked.argument.lower()), None)
        if mode is not None:
            await self.front.choose(key, mode=mode)
            return f"The queue mode is now `{mode}`. {self._for_now}"
        modes = ", ".join(f"`{one}`" for one in MODES)
        now = f"The queue mode is `{queues.mode(key)}`; available: {modes}."
        return f"There is no such mode. {now}" if asked.argument else now

    def _whoami(self, at: Address) -> str:
        """Shows the ids of the chat in the form of a binding."""
        names = ("channel", "account_id", "peer_id", "guild_id", "team_id")
        ids = dict(zip(names, (at.channel, at.account, at.peer, at.guild, at.team), strict=True))
        rows = [f"{name} = {json.dumps(value)}" for name, value in ids.items() if value]
        try:
            route = self.front.router.resolve(at)
            answers = f"`{route.agent_id}` answers here, by {route.matched_by}."
        except (NoRoute, NotOfProject):
            answers = UNROUTED
        return "\n".join(
            [f"You are {_quote(at.sender or at.peer)}. {answers}", "", "```toml", *rows, "```"]
        )

    async def _pair(self, at: Address, argument: str) -> str:
        """Lists and decides pairings. An owner decides only for the account of the chat."""
        verb, _, code = argument.partition(" ")
        place, by = (at.channel, at.account), speaker(at.channel, at.account, at.sender or at.peer)
        if verb in {"", "list"}:
            listed = await self.access.list_pairings(channel=at.channel, limit=MOST_LISTED)
            here = [_pairing(one) for one in listed if one.account == at.account]
            return _bullets(here) or "No pairing requests, no approved people."
        if verb not in {"approve", "deny"} or not code.strip():
            return PAIR_USAGE
        decide = self.access.approve if verb == "approve" else self.access.deny
        try:
            decided = await decide(code, by=by, at=place)
        except (Busy, NotFound) as error:
            return f"Nothing was changed: {error}."
        return _pairing(decided)


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def _share(report: Mapping[str, Any]) -> str:
    return f"{report['total_tokens']:,} of {report['max_context_tokens']:,} tokens"


def _spent(tally: Tally, limit: Limit) -> Sequence[str]:
    """Returns a row for each limited unit; without a limit, one row for tokens."""
    used = {"tokens": tally.used.tokens, "usd": tally.used.nano_usd}
    rows = [
        f"{in_unit(unit, used[unit]):,} of {in_unit(unit, bound):,} {unit}"
        for unit, bound in limit.bounds()
    ]
    return rows or [f"{used['tokens']:,} tokens"]


def _models(agent: AgentDef | None) -> Sequence[str]:
    """Lists the models of an agent and then of its fallbacks."""
    found: list[str] = []
    while agent is not None:
        found += [] if agent.model in found else [agent.model]
        agent = agent.fallback
    return found


def _fact(fact: Fact) -> str:
    text = " ".join(f"{fact.subject} {fact.predicate}: {fact.object}".split())
    return f"{text} (since {fact.valid_from:%Y-%m-%d})"


def _found(one: Recalled) -> str:
    if one.fact is not None:
        return _fact(one.fact)
    return f"{one.at:%Y-%m-%d}, {one.said_by}: {' '.join(one.text.split())[:LONGEST_SAID]}"


def _pairing(one: Pairing) -> str:
    state = {"asked": "waiting", "paired": "approved", "denied": "denied"}[one.state]
    owner = ", owner" if one.is_owner else ""
    name = f" ({_quote(one.name)})" if one.name else ""
    return f"{_quote(one.person)}{name} {state}{owner}"


def _quote(name: str) -> str:
    """Quotes a name that its owner chose, so that it cannot look like other text."""
    return f"`{''.join(one for one in name.replace('`', ' ') if one.isprintable())}`"
