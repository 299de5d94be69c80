"""Whatever comes in by a socket, the next visitor is served."""

import contextlib
import json
import random
from dataclasses import replace
from typing import Any

import anyio
import pytest
from websockets.frames import Frame, Opcode

from tests.web.running import (
    ECHO,
    GUARDED,
    OPEN,
    PING,
    Site,
    ask,
    closed_with,
    hear,
    keep_sending,
    read_all,
    running,
)

NAUGHTY: tuple[Any, ...] = (
    None, True, -1, 2**70, 1e308, "", "\x00", "\u202e", "a:b:c", "../..", "%", "\u0000" * 300,
    [], {}, [[]], {"": ""}, "\U0001f9e8" * 100, "__proto__", "x" * 5_000,
)  # fmt: skip


def upgrade(site: Site) -> bytes:
    return (
        f"GET /ws HTTP/1.1\r\nHost: {site.address}\r\nConnection: Upgrade\r\n"
        "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    ).encode()


async def throw(site: Site, data: bytes) -> None:
    with contextlib.suppress(anyio.BrokenResourceError, anyio.EndOfStream):
        async with await site.dial() as stream:
            await stream.send(upgrade(site))
            await stream.receive()
            await stream.send(data)
            with anyio.move_on_after(0.005):
                await stream.receive()


def anything(chance: random.Random) -> bytes:
    """A proper frame, one with its head mangled, or noise."""
    if chance.random() < 0.3:
        return chance.randbytes(chance.randint(1, 40))
    opcode = chance.choice([Opcode.TEXT, Opcode.CONT, Opcode.BINARY, Opcode.PING, Opcode.PONG])
    frame = bytearray(Frame(opcode, chance.randbytes(chance.randint(0, 120))).serialize(mask=True))
    if chance.random() < 0.5:
        frame[chance.randrange(2)] ^= 1 << chance.randrange(8)
    return bytes(frame)


@pytest.mark.parametrize("seed", range(4))
async def test_garbage_frames_harm_nobody(seed: int) -> None:
    chance = random.Random(seed)
    async with running(OPEN) as site, site.socket() as witness:
        for _ in range(40):
            frames = b"".join(anything(chance) for _ in range(chance.randint(1, 8)))
            await throw(site, frames)
        assert (await ask(witness, "ping"))["result"] == "pong"
        assert (await site.get("/healthz")).status == 200


@pytest.mark.parametrize("seed", range(3))
async def test_any_json_is_answered_by_an_error_or_a_result(seed: int) -> None:
    chance = random.Random(seed)
    async with running(OPEN, methods=(PING, ECHO)) as site, site.socket() as socket:
        for number in range(150):
            frame = {"jsonrpc": "2.0", "id": number, "method": "echo", "params": {"content": "x"}}
            for _ in range(chance.randint(1, 3)):
                where = chance.choice(["jsonrpc", "id", "method", "params", "extra"])
                frame[where] = chance.choice(NAUGHTY)
            if chance.random() < 0.3:
                frame["params"] = {"content": chance.choice(NAUGHTY)}
            if "id" in frame:
                await socket.send(json.dumps(frame))
                answer = await hear(socket)
                assert ("result" in answer) != ("error" in answer)
                assert answer.get("error", {}).get("code") != -32603
        assert (await ask(socket, "ping"))["result"] == "pong"


@pytest.mark.parametrize(
    "text",
    [
        "[" * 20_000 + "]" * 20_000,
        '{"a":' * 20_000 + "1" + "}" * 20_000,
        '{"jsonrpc":"2.0","id":1,"method":"echo","params":' + "[" * 65 + "]" * 65 + "}",
        '{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":NaN}}',
        '{"jsonrpc":"2.0","id":1e999,"method":"ping"}',
        '{"jsonrpc":"2.0","id":1,"method":"\\ud800"}',
    ],
)
async def test_json_that_is_no_json_has_the_parse_error(text: str) -> None:
    async with running(OPEN) as site, site.socket() as socket:
        await socket.send(text)
        assert (await hear(socket))["error"]["code"] == -32700
        assert (await ask(socket, "ping"))["result"] == "pong"


async def test_a_million_keys_do_not_fit_and_as_many_as_fit_get_a_short_answer() -> None:
    def keys(count: int) -> str:
        params = ",".join(f'"{number:x}":1' for number in range(count))
        return f'{{"jsonrpc":"2.0","id":1,"method":"ping","params":{{{params}}}}}'

    async with running(OPEN) as site:
        async with site.socket() as socket:
            await socket.send(keys(100_000))
            answer = await hear(socket)
            assert answer["error"]["code"] == -32700
            assert len(json.dumps(answer)) < 500
        async with site.socket() as socket:
            with contextlib.suppress(Exception):
                await socket.send(keys(1_000_000))
            assert await closed_with(socket) == 4409


async def test_a_burst_of_tiny_frames_before_auth_costs_one_answer() -> None:
    settings = replace(GUARDED, close_linger_s=0.2)
    async with running(settings) as site, site.socket() as witness, await site.dial() as stream:
        await stream.send(upgrade(site))
        await stream.receive()
        with contextlib.suppress(anyio.BrokenResourceError):
            await stream.send(Frame(Opcode.TEXT, b"1").serialize(mask=True) * 40_000)
        received = await read_all(stream)

        assert received.count(b'"jsonrpc"') <= 1
        assert (await ask(witness, "ping"))["error"]["code"] == -32001


async def test_a_flood_of_pings_from_who_does_not_read_is_bounded() -> None:
    settings = replace(OPEN, close_linger_s=0.2)
    async with running(settings) as site, await site.dial() as stream:
        await stream.send(upgrade(site))
        await stream.receive()
        flood = Frame(Opcode.PING, b"x" * 125).serialize(mask=True) * 500
        with pytest.raises(anyio.BrokenResourceError):
            await keep_sending(stream, flood * 2_000)  # 130 MB of pongs that nobody takes
        assert (await site.get("/healthz")).status == 200


async def test_who_goes_on_talking_after_the_goodbye_is_cut_off() -> None:
    async with running(replace(OPEN, close_linger_s=60)) as site, await site.dial() as stream:
        await stream.send(upgrade(site))
        await stream.receive()
        await stream.send(Frame(Opcode.BINARY, b"x").serialize(mask=True))
        talk = Frame(Opcode.TEXT, b"x" * 60_000).serialize(mask=True)
        with pytest.raises(anyio.BrokenResourceError):
            await keep_sending(stream, talk * 1_000)
