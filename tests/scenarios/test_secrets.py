"""Keys and tokens that the gateway was trusted with appear nowhere."""

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
from websockets.exceptions import InvalidStatus

from tests.fakes.client import connected, http, post_chat
from tests.fakes.gateway import Setup, command
from tests.fakes.model_server import Asked, Reply, scripted_server

KEY = "sk-canary-0f9e8d7c6b5a"
HEADER = "hdr-canary-55aa55aa55"
TOKEN = "tok-canary-1122334455"
OPERATOR = "opr-canary-6677889900"
GUESS = "gss-canary-0011223344"
CANARIES = (KEY, HEADER, TOKEN, OPERATOR, GUESS)

SAID = f'{{"error":{{"message":"bad key {KEY} in header {HEADER}","type":"x {KEY}"}}}}'.encode()


def indiscreet(asked: Asked) -> Reply:
    """Repeats what it was told in confidence."""
    return CASES[asked.last_text]


HALF = b'data: {"choices":[{"delta":{"content":"half"}}]}\n\n'
CASES = {
    "401": Reply(status=401, body=SAID),
    "500": Reply(status=500, body=SAID, headers={"retry-after": "0"}),
    "text": Reply(status=502, body=f"<p>{KEY} {HEADER}</p>".encode()),
    "stream": Reply(raw=[b"data: %b\n\n" % SAID]),
    "half": Reply(raw=[HALF, b"data: %b\n\n" % SAID]),
    "nonsense": Reply(raw=[f"data: {KEY} {HEADER}\n\n".encode()]),
    "redirect": Reply(status=307, headers={"location": f"http://evil/{KEY}"}, body=b"{}"),
    "hello": Reply("hello"),
}


async def test_no_canary_is_in_any_log_line_answer_error_or_file(tmp_path: Path) -> None:
    async with scripted_server(indiscreet) as model:
        setup = Setup(
            model.url,
            gateway=f'token = "{OPERATOR}"',
            provider=f'max_retries = 1\nheaders = {{ x-secret = "{HEADER}" }}',
            key=KEY,
            rest=f'[[tokens]]\nname = "alice"\ntoken = "{TOKEN}"\n'
            '[observability]\nlog_level = "debug"\nlog_format = "json"\n',
        )
        config = await setup.written(tmp_path)
        async with command(config) as site:
            said = await _told_outside(site.url)
            logged = await site.said()

        # What it sends to the provider is the proof that it had the secrets at all.
        assert model.requests[0].headers["authorization"] == f"Bearer {KEY}"
        assert model.requests[0].headers["x-secret"] == HEADER
    assert b"model_failed" in logged
    kept = [(str(file), data) async for file, data in _files(tmp_path / "data")]
    assert any(b"SQLite format 3" in data for _, data in kept)
    for canary in (canary.encode() for canary in CANARIES):
        assert canary not in logged
        assert not [text for text in said if canary in text]
        assert not [name for name, data in kept if canary in data]


async def _told_outside(url: str) -> list[bytes]:
    """Everything that clients with and without a token got to see."""
    said: list[bytes] = []
    async with connected(url, OPERATOR) as operator, connected(url, TOKEN) as alice:
        for number, case in enumerate(CASES):
            await alice.ask(case, peer=f"p{number}")
            answer = await post_chat(url, case, token=TOKEN)
            said += [answer.body, str(answer.headers).encode()]
        for method in ("status", "agent.list", "session.list"):
            await operator.call(method)
        await operator.call("auth", token=OPERATOR)
        await operator.refused("chat.send", content=5, token=TOKEN)
        for event in [events[-1] for events in alice.events.values()]:
            await operator.call("run.inspect", run_id=event["run_id"])
        said += [str(client.frames).encode() for client in (operator, alice)]
    try:
        async with connected(url, GUESS):
            raise AssertionError("a wrong token opened a socket")
    except InvalidStatus as error:
        said.append(bytes(error.response.body or b""))
    said.append(await _guess_in_a_frame(url))
    wrong = await http(f"{url}/readyz?token={GUESS}", token=GUESS)
    return [*said, wrong.body, str(wrong.headers).encode()]


async def _guess_in_a_frame(url: str) -> bytes:
    async with connected(url) as client:
        error = await client.refused("auth", token=GUESS)
        return str((error.whole, client.frames)).encode()


async def _files(folder: Path) -> AsyncIterator[tuple[anyio.Path, bytes]]:
    async for file in anyio.Path(folder).rglob("*"):
        if await file.is_file():
            yield file, await file.read_bytes()
