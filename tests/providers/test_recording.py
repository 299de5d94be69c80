"""What a provider sends is taken down as it comes, in its place, and nothing that is secret."""

from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest

from gateway.domain.errors import ModelFailed
from gateway.domain.model import Wire
from gateway.domain.ports import MOST_READ, HttpFailed
from gateway.outbound.connection import open_outbound
from tests.fakes.clock import FakeClock
from tests.fakes.http import ScriptedAnswer, ScriptedHttp
from tests.fakes.model_server import Reply, scripted_server
from tests.providers.asking import KEY, Heard, a_client, a_request


@dataclass
class Notes:
    """A Record that keeps everything."""

    marks: list[tuple[Any, ...]] = field(default_factory=list)
    hidden: set[str] = field(default_factory=set)

    def __call__(self, kind: str, *values: object) -> None:
        self.marks.append((kind, *values))

    def hide(self, *secrets: str) -> None:
        self.hidden.update(secrets)

    def of(self, kind: str) -> list[list[Any]]:
        return [values for name, *values in self.marks if name == kind]


class Hasty(FakeClock):
    """Nobody has to wait by it."""

    async def sleep(self, seconds: float) -> None:
        self.move(seconds)


EVENT = b'data: {"choices":[{"delta":{"content":"hi"},"finish_reason":"stop"}]}\n\n'
SSE = {"content-type": "text/event-stream"}


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
async def test_every_read_is_taken_down_before_it_is_decoded(wire: Wire) -> None:
    notes, heard = Notes(), Heard()
    async with scripted_server([Reply(["one ", "two"])]) as server, open_outbound() as http:
        client = a_client(http, url=server.url, wire=wire)
        with anyio.fail_after(60):
            await client.reply(a_request(record=notes), heard)

    assert [mark[0] for mark in notes.marks][:3] == ["sent", "head", "bytes"]
    assert notes.marks[1] == ("head", 200, SSE)
    said = b"".join(values[0] for values in notes.of("bytes"))
    assert b"one " in said
    assert b"two" in said
    assert notes.marks[-1][0] == "end"
    assert notes.hidden == {KEY}
    assert KEY not in str(notes.marks)


async def test_only_headers_that_decoding_needs_are_kept() -> None:
    notes = Notes()
    headers = {**SSE, "set-cookie": "a=b", "x-request-id": "r1", "retry-after": "3"}
    http = ScriptedHttp(ScriptedAnswer([EVENT], headers=headers))

    await a_client(http).reply(a_request(record=notes), Heard())

    assert notes.of("head") == [[200, {**SSE, "retry-after": "3"}]]


async def test_a_long_read_is_taken_down_in_the_pieces_that_are_worked_on() -> None:
    notes = Notes()
    long = b": " + b"x" * (2 * MOST_READ) + b"\n\n" + EVENT

    reply = await a_client(ScriptedHttp(ScriptedAnswer([long]))).reply(
        a_request(record=notes), Heard()
    )

    pieces = [values[0] for values in notes.of("bytes")]
    assert b"".join(pieces) == long
    assert [len(piece) for piece in pieces[:-1]] == [MOST_READ, MOST_READ]
    assert reply.text == "hi"


@pytest.mark.parametrize(
    ("step", "end"),
    [
        (HttpFailed("network", "nobody is there"), ["network", "nobody is there"]),
        (ScriptedAnswer([b"x", HttpFailed("timeout", "too slow")]), ["timeout", "too slow"]),
        (ScriptedAnswer([b"x"]), ["complete", ""]),
        (ScriptedAnswer([b"data: {\n\n", b"more"]), ["cut", ""]),
    ],
)
async def test_how_it_ended_is_taken_down_once(step: Any, end: list[str]) -> None:
    notes = Notes()

    with pytest.raises(ModelFailed):
        await a_client(ScriptedHttp(step)).reply(a_request(record=notes), Heard())

    assert notes.of("end") == [end]


async def test_each_attempt_is_taken_down() -> None:
    notes = Notes()
    failing = ScriptedAnswer(status=503, headers={"retry-after": "0"})
    http = ScriptedHttp(failing, ScriptedAnswer([EVENT]))
    client = a_client(http, max_retries=1, clock=Hasty())

    await client.reply(a_request(record=notes), Heard())

    assert [values[0] for values in notes.of("head")] == [503, 200]
    assert len(notes.of("sent")) == len(notes.of("end")) == 2


async def test_a_call_that_is_given_up_while_it_connects_is_taken_down_as_cut() -> None:
    notes = Notes()
    async with scripted_server([Reply("x", gate=anyio.Event())]) as server, open_outbound() as http:
        client = a_client(http, url=server.url)
        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                group.start_soon(client.reply, a_request(record=notes), Heard())
                await server.wait_for(1)
                group.cancel_scope.cancel()

    assert [mark[0] for mark in notes.marks] == ["sent", "end"]
    assert notes.of("end") == [["cut", ""]]
