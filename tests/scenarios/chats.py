"""One person at a platform: she writes, and reads what stands there; the gateway is a whole one."""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
from anyio.lowlevel import checkpoint

from tests.fakes.api import ApiCall, Json, Told, serving
from tests.fakes.client import HttpAnswer, connected, http
from tests.fakes.gateway import Setup, running
from tests.fakes.model_server import Asked, ModelServer, Reply, scripted_server

LONG_S = 60.0
CODE = re.compile(r"\b[A-Z2-9]{4}-[A-Z2-9]{4}\b")


def script(asked: Asked) -> Reply:
    """Says again what was said; at length, if it is a number: so many sentences."""
    said = asked.last_text.split()[-1]
    if said.isdigit():
        return Reply(sentences(int(said)))
    return Reply(f"answer to {asked.last_text}")


def sentences(count: int) -> str:
    return "\n\n".join(
        " ".join(f"This is sentence {number} of paragraph {part}." for number in range(10))
        for part in range(count // 10)
    )


@dataclass
class Chat(ABC):
    """`toml` is how an operator sets the channel up; `person` may talk if she is `listed`."""

    person: str
    direct: str
    group: str
    listed: bool = False
    api: str = ""  # where the platform is
    gateway: str = ""  # where the gateway is, while it runs
    calls: list[ApiCall] = field(default_factory=list)
    shown: dict[str, tuple[str, str]] = field(default_factory=dict)  # room and text by id
    to_refuse: int = 0  # so many messages, as there were too many
    attached: Json = field(default_factory=dict)  # to what is said, as the platform has it
    _news: anyio.Event = field(default_factory=anyio.Event)

    # ------------------------------------------------------------------------ the platform
    @property
    @abstractmethod
    def toml(self) -> str: ...

    @property
    def rules(self) -> str:
        """Keys of the channel."""
        allowed = f'allow_from = ["{self.person}"]' if self.listed else ""
        return f'{allowed}\ngroups."{self.group}" = {{}}'

    @abstractmethod
    async def answer(self, call: ApiCall) -> Told: ...

    @abstractmethod
    async def say(self, text: str, *, room: str = "", mention: bool = False) -> None:
        """In the direct chat, unless a room is named."""

    async def reach(self) -> None:
        """The gateway is there, or there again."""
        await checkpoint()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        async with serving(self._answer) as self.api:
            yield

    def show(self, room: str, text: str, message_id: str = "") -> str:
        """A message, or what it is edited to."""
        name = message_id or str(5_000 + len(self.shown))
        self.shown[name] = (room, text)
        return name

    async def _answer(self, call: ApiCall) -> Told:
        self.calls.append(call)
        told = await self.answer(call)
        self.changed()
        return told

    # ------------------------------------------------------------------------ what she sees
    def texts(self, room: str = "") -> list[str]:
        return [text for place, text in self.shown.values() if place == (room or self.direct)]

    def changed(self) -> None:
        news, self._news = self._news, anyio.Event()
        news.set()

    async def until_sent(self, method: str, path: str) -> ApiCall:
        while True:
            for call in self.calls:
                if (call.method, call.path) == (method, path):
                    return call
            await self.news()

    async def sees(self, part: str, room: str = "") -> str:
        """The first message with that in it, once it is there."""
        while True:
            for text in self.texts(room):
                if part in text:
                    return text
            await self.news()

    async def news(self) -> None:
        await self._news.wait()


@dataclass
class CalledChat(Chat):
    """A platform that calls the gateway, and keeps what was not taken."""

    waiting: list[Json] = field(default_factory=list)

    @abstractmethod
    def signed(self, body: bytes) -> Mapping[str, str]:
        """The headers that prove it, at this very moment."""

    async def call(self, body: Json) -> None:
        self.waiting.append(body)
        if self.gateway:
            await self.reach()

    async def reach(self) -> None:
        while self.waiting:
            answer = await self.post(self.waiting[0])
            assert answer.status == 200
            del self.waiting[0]

    async def post(self, body: Json) -> HttpAnswer:
        raw = json.dumps(body).encode()
        headers = {"content-type": "application/json", **self.signed(raw)}
        url = f"{self.gateway}/webhooks/{self.address}"
        return await http(url, method=self.method, headers=headers, body=raw)

    @property
    def method(self) -> str:
        return "POST"

    @property
    @abstractmethod
    def address(self) -> str:
        """After /webhooks/"""


@asynccontextmanager
async def opened(chat: Chat, model: ModelServer, folder: Path) -> AsyncIterator[None]:
    async with running(Setup(model.url, rest=chat.toml), folder) as site:
        chat.gateway = site.url
        await chat.reach()
        yield
        chat.gateway = ""


# ---------------------------------------------------------------------------------- what happens
async def pairs_and_is_answered(chat: Chat, folder: Path) -> None:
    """A stranger gets a code, despite one refusal for too many messages; then she is answered."""
    chat.to_refuse = 1
    with anyio.fail_after(LONG_S):
        async with scripted_server(script) as model, opened(chat, model, folder):
            await chat.say("hello")
            code = CODE.search(await chat.sees("pair approve"))
            assert code is not None
            async with connected(chat.gateway) as client:
                await client.call("pair.approve", code=code[0], owner=True)
            await chat.say("How are you?")
            await chat.sees("answer to How are you?")
            await chat.say("/help")
            await chat.sees("/new")

    assert chat.to_refuse == 0
    assert len(chat.texts()) == 3
    assert [asked.last_text for asked in model.requests] == ["How are you?"]


async def reads_all_of_a_long_answer(chat: Chat, folder: Path, count: int) -> list[str]:
    """The parts; cut where a reader would, they are the whole answer."""
    whole = sentences(count)
    chat.listed = True
    with anyio.fail_after(LONG_S):
        async with scripted_server(script) as model, opened(chat, model, folder):
            await chat.say(f"say sentences: {count}")
            await chat.sees(whole[-30:])

    rest = whole
    for part in chat.texts():
        assert rest.startswith(part)
        rest = rest[len(part) :].lstrip()
    assert rest == ""
    return chat.texts()


async def is_heard_in_a_room_by_name_alone(chat: Chat, folder: Path) -> None:
    """A message that names the bot is answered in its room; others there, and other rooms, are not."""
    with anyio.fail_after(LONG_S):
        async with scripted_server(script) as model, opened(chat, model, folder):
            await chat.say("among ourselves", room=chat.group)
            await chat.say("hi there", room=f"{chat.group}9", mention=True)
            await chat.say("hi there", room=chat.group, mention=True)
            answer = await chat.sees("answer to", chat.group)
            async with connected(chat.gateway) as client:
                (session,) = (await client.call("session.list"))["sessions"]

    assert "hi there" in answer
    assert session["peer"] == f"room:{chat.group}"
    assert [room for room, _ in chat.shown.values()] == [chat.group]
    assert len(model.requests) == 1


async def is_answered_once_over_a_restart(chat: Chat, folder: Path) -> None:
    """Also what she said while the gateway was away, if the platform keeps it."""
    chat.listed = True
    with anyio.fail_after(LONG_S):
        async with scripted_server(script) as model:
            async with opened(chat, model, folder):
                await chat.say("before")
                await chat.sees("answer to before")
            await chat.say("meanwhile")
            async with opened(chat, model, folder):
                await chat.sees("answer to meanwhile")
                await chat.say("after")
                await chat.sees("answer to after")

    assert chat.texts() == ["answer to before", "answer to meanwhile", "answer to after"]


async def loses_what_nobody_can_encode_and_nothing_else(chat: Chat, folder: Path) -> None:
    """The operator finds it among the dead letters with its reason, and can have it taken."""
    chat.listed = True
    with anyio.fail_after(LONG_S):
        async with scripted_server(script) as model, opened(chat, model, folder):
            await chat.say("before")
            await chat.say("half \ud83d a sign")
            await chat.say("after")
            await chat.sees("answer to before")
            await chat.sees("answer to after")
            async with connected(chat.gateway) as client:
                (listed,) = (await client.call("channel.list"))["channels"]
                page = await client.call("channel.dead_letters")
                (letter,) = page["unread"]
                taken = await client.call("channel.resubmit", id=letter["id"])
                await chat.sees("answer to half \ufffd a sign")
                left = await client.call("channel.dead_letters")

    assert len(chat.texts()) == 3
    assert (letter["text"], listed["unread"]) == ("half \ufffd a sign", 1)
    assert "half of a surrogate pair" in letter["why"]
    assert page["counts"] == {"outgoing": 0, "incoming": 1}
    assert (taken["state"], left["unread"]) == ("taken", [])


async def keeps_a_room_from_a_direct_chat_of_the_same_id(chat: Chat, folder: Path) -> None:
    """What is said to the agent alone is never shown to it in the room."""
    chat.listed = True
    with anyio.fail_after(LONG_S):
        async with scripted_server(script) as model, opened(chat, model, folder):
            await chat.say("Only 4711 opens my safe")
            await chat.sees("4711")
            await chat.say("in the room", room=chat.group, mention=True)
            await chat.sees("in the room", chat.group)
            async with connected(chat.gateway) as client:
                sessions = (await client.call("session.list"))["sessions"]

    assert chat.direct == chat.group
    assert "4711" not in json.dumps(model.requests[-1].body)
    assert {one["peer"] for one in sessions} == {chat.direct, f"room:{chat.group}"}


async def is_told_what_came_with_a_message(chat: Chat, folder: Path, *said: str) -> list[str]:
    """What the model is asked for each; `attached` is with all of them."""
    chat.listed = True
    asked = []
    with anyio.fail_after(LONG_S):
        async with scripted_server(script) as model, opened(chat, model, folder):
            for number, text in enumerate(said, 1):
                await chat.say(text)
                asked.append((await model.wait_for(number)).last_text)
    return asked
