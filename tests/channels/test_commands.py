"""Commands in the chat do what they say, for the session they are given in, without any model."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import anyio
import pytest

from gateway.budgets import LiveBudgets
from gateway.channels.access import NAMES, command_in
from gateway.channels.adapters import Incoming, Parsed, Sender
from gateway.channels.commands import HELP, UNROUTED, ChatCommands
from gateway.channels.intake import Intake, address_of
from gateway.domain.agents import AgentDef, key_peer
from gateway.domain.budgets import Budgets, Limit
from gateway.domain.channels import ChannelDef
from gateway.domain.errors import StoreUnavailable
from gateway.domain.facts import Claim, scope_of
from gateway.domain.ids import AgentId, SessionKey
from gateway.domain.inbox import Inbound
from gateway.domain.model import ModelRequest
from gateway.domain.ports import Model, Stores
from gateway.memory.recall import Recall
from tests.channels.people import CHANNEL, a_book, ask, in_room, said
from tests.fakes.model import GatedModel, ScriptedModel, says
from tests.fakes.store import NOON, open_memory
from tests.sessions.stage import AGENT, Stage, staged

ANN = SessionKey(AGENT.id, "chat", "default", "ann")
DEN = ANN._replace(peer="den")
BACKED = replace(AGENT, fallback=AgentDef(AgentId("a"), "fake", "fake-2"))
BUDGETS = Budgets(session=Limit(tokens=1_000), daily=Limit(tokens=5_000))


@dataclass
class Chat:
    stage: Stage
    stores: Stores
    commands: ChatCommands
    asked: list[ModelRequest]
    intake: Intake

    async def give(self, text: str, message: Incoming | None = None) -> str:
        command = command_in(text)
        assert command is not None
        return await self.commands.run(command, CHANNEL, message or said(text))

    async def receive(self, *messages: Incoming, channel: ChannelDef = CHANNEL) -> None:
        """As they come from the platform."""
        await self.intake.process(channel, Parsed(messages))

    async def told(self) -> list[tuple[str, str]]:
        """What is to be delivered without a turn, and to whom."""
        due = await self.stores.outbox.due(CHANNEL.name, now=self.stage.clock.now(), limit=1_000)
        return [(one.new.peer, one.new.text) for one in due]

    async def say(self, text: str, message: Incoming | None = None) -> str:
        """To the agent; gives the run's id once it is accepted."""
        at = address_of(CHANNEL, message or said(text))
        accepted = await self.stage.front.intake.accept(Inbound(at, text))
        self.stage.listen(accepted.run_id)
        return accepted.run_id


async def at_once(_key: SessionKey) -> None:
    """Nothing is left to be looked at."""


@asynccontextmanager
async def chatting(model: Model | None = None, *, agent: AgentDef = AGENT) -> AsyncIterator[Chat]:
    scripted = ScriptedModel(says("first"))
    async with (
        open_memory() as stores,
        staged(model or scripted, stores, agents=(agent,), budgets=BUDGETS) as stage,
    ):
        commands = ChatCommands(
            front=stage.front,
            spending=stores.ledger,
            budgets=LiveBudgets(BUDGETS),
            facts=stores.facts,
            recall=Recall(stores.facts),
            settled=at_once,
            shared=frozenset(),
            access=a_book(stores, stage.clock),
        )
        kept = (stores.channels, stage.clock, lambda: None)
        intake = Intake(stage.front.intake.accept, *kept, commands.access, commands.run)
        yield Chat(stage, stores, commands, scripted.asked, intake)


async def own(chat: Chat, person: str = "ann") -> None:
    book = chat.commands.access
    code = await ask(chat.stores, book, said(person=person).sender)
    assert code is not None
    await book.approve(code, by="local", is_owner=True)


async def know(chat: Chat, text: str, message: Incoming) -> None:
    at = address_of(CHANNEL, message)
    key = ANN._replace(peer=key_peer(at.peer, is_room=at.is_room))
    claim = Claim("user", "likes", text, functional=False, valid_from=NOON, session_key=key)
    scope = scope_of(key, at.sender)
    await chat.stores.facts.add_facts(scope, [claim], ids=[f"f-{text}"], now=NOON)


async def test_help_tells_every_command_and_no_other() -> None:
    async with chatting() as chat:
        told = await chat.give("/help")

    assert told == HELP
    assert {*re.findall(r"^- `/(\w+)", told, re.MULTILINE), "reset"} == set(NAMES)


@pytest.mark.parametrize("text", ["/new", "/reset"])
async def test_new_begins_a_conversation_and_keeps_the_old_one(text: str) -> None:
    async with chatting() as chat:
        await chat.say("remember the blue boat")
        await chat.stage.until_idle()
        before = await chat.stores.sessions.find_session(ANN)

        await chat.give(text)
        await chat.say("what colour?")
        await chat.stage.until_idle()
        shown = [message.text for message in chat.asked[-1].messages]
        tree = await chat.stores.sessions.tree(ANN, limit=100)

    assert before is not None
    assert before.head is not None
    assert shown == ["what colour?"]
    assert [node.parent_id for node in tree].count(None) == 2
    assert len(chat.asked) == 2


@pytest.mark.parametrize("name", ["new", "stop", "status", "help"])
async def test_a_command_that_stands_alone_does_nothing_with_words_behind_it(name: str) -> None:
    async with chatting() as chat:
        await chat.say("hello")
        await chat.stage.until_idle()

        told = await chat.give(f"/{name} what is the weather like?")

        record = await chat.stores.sessions.find_session(ANN)
    assert "Nothing was done" in told
    assert record is not None
    assert record.head is not None


async def test_stop_ends_what_is_at_work_and_what_waits_in_this_chat_alone() -> None:
    model = GatedModel()
    async with chatting(model) as chat:
        runs = [await chat.say("one"), await chat.say("two")]
        other = await chat.say("else", said("else", "ben"))
        await model.until_asked(2)

        told = await chat.give("/stop")
        await chat.stage.until_pending(1)
        model.let()
        await chat.stage.until_idle()
        nothing = await chat.give("/stop")

    ends = [chat.stage.heard[run][-1]["reason"] for run in (*runs, other)]
    assert told == "Stopped: 2 messages."
    assert ends == ["cancelled", "cancelled", "answered"]
    assert nothing == "No answer is running."


async def test_usage_tells_this_chat_to_everybody_and_the_rest_to_owners() -> None:
    async with chatting() as chat:
        await own(chat)
        await chat.say("hello")
        await chat.say("hello", said("hello", "ben"))
        await chat.stage.until_idle()
        spent = (await chat.stores.sessions.find_session(ANN)).input_tokens  # type: ignore[union-attr]  # it is there

        owners = await chat.give("/usage")
        others = await chat.give("/usage", said("/usage", "ben"))
        in_a_room = await chat.give("/usage", in_room("/usage"))

    assert spent > 0
    assert (
        re.findall(r"^- ([^:]+): ([\d,]+)(.*)$", owners, re.MULTILINE)[0][2] == " of 1,000 tokens"
    )
    assert re.search(r"Today, in total: [1-9]\d* of 5,000 tokens", owners)
    for told in (others, in_a_room):
        assert re.fullmatch(r"- This chat: \d+ of 1,000 tokens", told)


async def test_status_tells_of_agent_model_queue_and_context() -> None:
    async with chatting() as chat:
        fresh = await chat.give("/status")
        await chat.say("hello")
        await chat.stage.until_idle()
        told = await chat.give("/status")

    assert "Agent `a`, model `fake-1`" in fresh
    assert "last context" not in fresh
    assert "Queue `followup`: 0 running, 0 queued" in told
    assert "2 messages in this chat" in told
    assert re.search(r"The last context had [1-9]\d* of 128,000 tokens", told)


async def test_context_tells_the_parts_of_what_was_last_shown() -> None:
    async with chatting() as chat:
        nothing = await chat.give("/context")
        await chat.say("hello")
        await chat.stage.until_idle()
        told = await chat.give("/context")

    assert nothing == "There is no context of an answer in this chat."
    total = int(re.findall(r"last context had ([\d,]+) of", told)[0].replace(",", ""))
    parts = [
        int(one.replace(",", "")) for one in re.findall(r"^- \w+: ([\d,]+)", told, re.MULTILINE)
    ]
    assert sum(parts) == total > 0


async def test_a_model_is_chosen_among_those_of_the_agent_for_this_chat_until_it_begins_anew() -> (
    None
):
    async with chatting(agent=BACKED) as chat:
        wrong = await chat.give("/model gpt-9")
        right = await chat.give("/model fake-2")
        now = await chat.give("/model")
        for person in ("ann", "ben"):
            await chat.say("hello", said("hello", person))
            await chat.stage.until_idle()
        await chat.give("/new")
        await chat.say("hello")
        await chat.stage.until_idle()

    assert "there is no such model" in wrong
    assert "until `/new` or a restart of the gateway" in right
    assert now.startswith("The model is `fake-2`; available: `fake-1`, `fake-2`.")
    assert [request.model for request in chat.asked] == ["fake-2", "fake-1", "fake-1"]


async def test_a_choice_of_model_is_taken_back() -> None:
    async with chatting(agent=BACKED) as chat:
        await chat.give("/model fake-2")
        await chat.give("/model default")
        await chat.say("hello")
        await chat.stage.until_idle()

    assert [request.model for request in chat.asked] == ["fake-1"]


async def test_a_queue_mode_is_chosen_for_this_chat() -> None:
    model = GatedModel()
    async with chatting(model) as chat:
        wrong = await chat.give("/queue sideways")
        right = await chat.give("/queue Collect")
        for person in ("ann", "ben"):
            for text in ("one", "two", "three"):
                await chat.say(f"{person}-{text}", said(text, person))
        await model.until_asked(2)
        model.let(5)
        await chat.stage.until_idle()
        now = await chat.give("/queue")

    later = sorted(model.questions[2:])
    assert "no such mode" in wrong
    assert "The queue mode is now `collect`" in right
    assert now.startswith("The queue mode is `collect`; available: `followup`, `collect`")
    assert later == [["ann-two", "ann-three"], ["ben-three"], ["ben-two"]]


async def test_memory_tells_and_finds_what_is_known_of_the_person() -> None:
    async with chatting() as chat:
        nothing = (await chat.give("/memory"), await chat.give("/memory boats"))
        await know(chat, "blue boats", said())
        await know(chat, "fast cars", said())
        await know(chat, "secret trains", said(person="ben"))

        told, found = await chat.give("/memory"), await chat.give("/memory boats")

    assert nothing == ("No facts are known yet.", "Nothing was found.")
    assert told.splitlines() == [
        "- user likes: blue boats (since 2026-01-01)",
        "- user likes: fast cars (since 2026-01-01)",
    ]
    assert "blue boats" in found
    assert "cars" not in found


async def test_in_a_room_memory_tells_only_what_was_said_there() -> None:
    async with chatting() as chat:
        await know(chat, "private things", said())
        await know(chat, "things of the room", in_room())

        told = await chat.give("/memory", in_room())

    assert told == "- user likes: things of the room (since 2026-01-01)"


async def test_whoami_tells_what_a_binding_needs() -> None:
    async with chatting() as chat:
        told = await chat.give("/whoami", in_room(guild="g", team='t"'))

    assert "You are `ann`. `a` answers here, by default." in told
    assert told.split("```toml\n")[1].split("\n```")[0].splitlines() == [
        'channel = "chat"',
        'account_id = "default"',
        'peer_id = "den"',
        'guild_id = "g"',
        'team_id = "t\\""',
    ]


async def test_an_owner_decides_who_may_talk_on_their_account_and_no_other() -> None:
    async with chatting() as chat:
        book = chat.commands.access
        await own(chat)
        codes = [
            await ask(chat.stores, book, said(person=person).sender, *where)
            for person, where in [
                ("ben", ("chat", "default")),
                ("cleo", ("chat", "default")),
                ("dan", ("chat", "other")),
            ]
        ]

        listed = await chat.give("/pair")
        approved = await chat.give(f"/pair approve {codes[0]}")
        denied = await chat.give(f"/pair deny {codes[1]}")
        elsewhere = await chat.give(f"/pair approve {codes[2]}")
        usage = await chat.give("/pair approve")
        (entry,) = await chat.stores.audit.newest(kind="pair.denied")
        dan = await book.find("chat", "other", "dan")

    assert listed.splitlines() == [
        "- `ben` (`Ben`) waiting",
        "- `cleo` (`Cleo`) waiting",
        "- `ann` (`Ann`) approved, owner",
    ]
    assert (approved, denied) == ("`ben` (`Ben`) approved", "`cleo` (`Cleo`) denied")
    assert (
        elsewhere
        == "Nothing was changed: no pairing request has that code; a code is valid once, for one hour."
    )
    assert "Write" in usage
    assert entry.actor == "chat:default:ann"
    assert dan is not None
    assert dan.state == "asked"


async def test_what_people_call_themselves_looks_like_nothing_else() -> None:
    async with chatting() as chat:
        eve = Sender("eve", "`[you](http://evil)\n# \u202eOwner\x1b[2J")
        await ask(chat.stores, chat.commands.access, eve)

        told = await chat.give("/pair list")

    assert told == "- `eve` (` [you](http://evil) # ?Owner?[2J`) waiting"


async def test_too_many_wrong_codes_are_answered_and_not_retried() -> None:
    async with chatting() as chat:
        for _ in range(5):
            await chat.give("/pair approve AAAA-AAAA")

        assert "too many wrong codes" in await chat.give("/pair approve AAAA-AAAA")


async def test_no_command_asks_a_model_or_makes_a_message() -> None:
    async with chatting() as chat:
        for name in NAMES:
            for argument in ("", " list", " boats"):
                await chat.give(f"/{name}{argument}")
        record = await chat.stores.sessions.find_session(ANN)

    assert chat.asked == []
    assert record is not None  # `/new` made it
    assert (record.message_count, record.input_tokens, record.output_tokens) == (0, 0, 0)


# --- as they come from a platform --------------------------------------------------------------
async def test_a_hundred_messages_of_a_stranger_cost_nothing_and_are_answered_once() -> None:
    async with chatting() as chat:
        for number in range(100):
            await chat.receive(said(f"/new {number}" if number % 2 else f"hello {number}"))
        told = await chat.told()
        sessions, runs = (
            await chat.stores.sessions.count_sessions(),
            await chat.stores.inbox.unfinished(),
        )

    assert [peer for peer, _ in told] == ["ann"]
    assert "I do not know you yet" in told[0][1]
    assert (chat.asked, sessions, list(runs)) == ([], 0, [])


async def test_an_owner_lets_a_stranger_in_who_is_answered_from_then_on() -> None:
    async with chatting() as chat:
        await own(chat)
        await chat.receive(said("let me in", "ben"))
        ((_, told),) = await chat.told()
        code = told.split("approve ", 1)[1][:9]

        await chat.receive(said(f"/pair approve {code}"))
        await chat.receive(said("let me in", "ben"))  # the platform sends it again: it was answered
        await chat.receive(said("hello again", "ben"))
        await chat.stage.until_idle()

        answers = [text for peer, text in await chat.told() if peer == "ann"]
    assert answers == ["`ben` (`Ben`) approved"]
    assert [request.messages[-1].text for request in chat.asked] == ["hello again"]


async def test_a_command_that_comes_ten_times_is_carried_out_once_and_never_billed() -> None:
    async with chatting() as chat:
        await own(chat)
        codes = [await ask(chat.stores, chat.commands.access, said(person="ben").sender)]
        command = said(f"/pair approve {codes[0]}")

        async with anyio.create_task_group() as group:
            for _ in range(10):
                group.start_soon(chat.receive, command)

        told = await chat.told()
        spent = await chat.stores.ledger.models(limit=10)
    assert told == [("ann", "`ben` (`Ben`) approved")]
    assert chat.intake.counts["chat", "duplicate"] == 9
    assert (list(spent), chat.asked) == ([], [])


@pytest.mark.parametrize("text", ["/new", "/pair list", "/usage"])
async def test_a_command_of_somebody_who_may_give_none_is_plain_text(text: str) -> None:
    async with chatting() as chat:
        await chat.receive(said(text), channel=replace(CHANNEL, dm_policy="open"))
        await chat.stage.until_idle()

        assert await chat.told() == [("ann", "first")]  # the answer of the turn alone
    assert [request.messages[-1].text for request in chat.asked] == [text]


async def test_where_no_agent_answers_there_is_nothing_to_command() -> None:
    async with chatting() as chat:
        nobody = replace(chat.commands.front, router=type(chat.stage.front.router)([], (), None))
        commands = replace(chat.commands, front=nobody)

        told = await commands.run(command_in("/stop"), CHANNEL, said())  # type: ignore[arg-type]  # it is one

    assert told == UNROUTED


async def test_a_store_that_is_gone_refuses_the_command() -> None:
    async with chatting() as chat:
        await chat.stores.care.close()

        with pytest.raises(StoreUnavailable):
            await chat.give("/new")
