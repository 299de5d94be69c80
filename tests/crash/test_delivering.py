"""Killed in the window between a send and its receipt: nothing is lost, and what doubles is known."""

import contextlib
import os
import random
import re
import signal
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import anyio
import pytest
from anyio import to_thread
from anyio.abc import SocketAttribute, SocketStream

from gateway.store.opening import open_store
from tests.crash.delivering import ANSWERS, PEERS, text_of
from tests.fakes.clock import FakeClock
from tests.fakes.commands import Forked, commands
from tests.forms import is_long

KILLS = 8 if is_long() else 4
LONG_S = 60.0
EVERY_PART = {part for number in range(ANSWERS) for part in text_of(number).split()}


class Platform:
    """Takes messages on loopback, and kills the sender before or right after its answer."""

    def __init__(self) -> None:
        self.chance = random.Random(7)
        self.got: list[tuple[str, str | None]] = []  # every message that arrived, with its key
        self.kills = 0
        self.process: Forked | None = None

    async def serve(self, stream: SocketStream) -> None:
        with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError):
            async with stream:
                await self._answer(stream)

    async def _answer(self, stream: SocketStream) -> None:
        raw = b""
        while b"\r\n\r\n" not in raw:
            raw += await stream.receive()
        head, _, body = raw.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().lower().split("\r\n")[1:])
        while len(body) < int(headers["content-length"]):
            body += await stream.receive()
        self.got.append((body.decode(), headers.get("x-key")))
        is_due = self.kills < KILLS and self.chance.random() < 0.2
        if is_due and self.chance.random() < 0.5:
            self._kill()
            return
        await stream.send(b'HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n{"id":"m"}')
        if is_due:
            self._kill()

    def _kill(self) -> None:
        if self.process is not None and self.kills < KILLS:
            self.process.kill()
            self.process = None  # each dies once
            self.kills += 1

    async def until_all_have_ended(self, *arguments: str) -> None:
        async with (
            await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
            anyio.create_task_group() as group,
        ):
            group.start_soon(listener.serve, self.serve)
            port = listener.extra(SocketAttribute.local_port)
            code: int | None = None
            while code != 0:
                words = [*arguments, f"http://127.0.0.1:{port}"]
                self.process = process = await to_thread.run_sync(begun, words)
                code = await to_thread.run_sync(process.wait, LONG_S)
                assert code in {0, -signal.SIGKILL}
            group.cancel_scope.cancel()


def begun(words: Sequence[str]) -> Forked:
    with Path(os.devnull).open("r+b") as nothing:
        files = [nothing.fileno()] * 2 + [sys.stderr.fileno()]
        return commands().begin(words, {}, files, module="tests.crash.delivering")


async def played(data_dir: Path, kind: str, on_unknown: str) -> Platform:
    platform = Platform()
    with anyio.fail_after(LONG_S):
        await platform.until_all_have_ended(str(data_dir), kind, on_unknown)
    assert platform.kills >= KILLS // 2  # what is held ends sooner
    return platform


def in_order(texts: Iterable[str]) -> bool:
    """Of each conversation, by the first time that something arrived."""
    parts = [tuple(map(int, re.findall(r"\d+", text))) for text in dict.fromkeys(texts)]
    return all(
        mine == sorted(mine)
        for peer in range(PEERS)
        if (mine := [part for part in parts if part[0] % PEERS == peer])
    )


@pytest.mark.requirement("S-003-Message-06")
async def test_killed_while_sending_a_platform_that_knows_keys_shows_each_part_once(
    tmp_path: Path,
) -> None:
    platform = await played(tmp_path, "keyed", "hold")

    shown = dict.fromkeys(platform.got)
    assert len(platform.got) > len(shown)  # or no kill hit the window
    assert sorted(text for text, _ in shown) == sorted(EVERY_PART)
    assert in_order(text for text, _ in shown)


async def test_killed_while_sending_each_part_arrives_and_at_most_those_in_the_window_twice(
    tmp_path: Path,
) -> None:
    platform = await played(tmp_path, "plain", "resend")

    times = Counter(text for text, _ in platform.got)
    assert set(times) == set(EVERY_PART)
    assert in_order(times)
    doubled = sum(times.values()) - len(times)
    assert 0 < doubled <= KILLS * PEERS  # each conversation has one part in the window at most


async def test_killed_while_sending_what_is_held_arrives_once_or_is_a_dead_letter(
    tmp_path: Path,
) -> None:
    platform = await played(tmp_path, "plain", "hold")

    async with open_store("embedded", tmp_path, clock=FakeClock()) as stores:
        dead = await stores.outbox.dead_letters(None, before=None, limit=99)
    texts = [text for text, _ in platform.got]
    assert len(set(texts)) == len(texts)
    assert dead
    assert {one.state for one in dead} == {"unknown"}
    missing = {text[:10] for text in EVERY_PART - set(texts)}
    assert missing <= {one.new.text[:10] for one in dead}
