"""A data directory from before rooms had keys of their own, opened by a gateway of today.

`tests/store/version_7.db.xz` was written by a gateway of then, with an adapter `webhook` as channel `ci`,
while its model did not answer. In room `team` Ann and Bob talked, and Ann in its thread `t/1`; Ann wrote
directly. `both` is a person and a room, which had one session. `solo` is a person alone in a room of that
name. `room:odd` wrote directly. Four messages waited: two in `team`, one in each `both`.
"""

import json
import lzma
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, replace
from pathlib import Path

import anyio
import pytest
from anyio import to_thread

from gateway.store.tables import version_of
from tests.fakes.client import Client, connected
from tests.fakes.gateway import Setup, running
from tests.fakes.model_server import ModelServer, scripted_server
from tests.scenarios.chats import LONG_S, script
from tests.scenarios.test_channel_webhook import Program

SAMPLE = Path(__file__).parents[1] / "store" / "version_7.db.xz"


@dataclass
class Team(Program):
    made: int = 100  # messages of then had the ids below

    @property
    def rules(self) -> str:
        return 'dm_policy = "open"\nrequire_mention = false\ngroups."*" = {}\n'


@dataclass
class Site:
    chat: Team
    model: ModelServer
    client: Client

    def shown(self, last: str) -> str:
        """All that the model was shown with that question."""
        return next(json.dumps(one.body) for one in self.model.requests if one.last_text == last)


async def laid_out(folder: Path) -> Path:
    data = folder / "data"
    await anyio.Path(data).mkdir(mode=0o700)
    raw = lzma.decompress(await anyio.Path(SAMPLE).read_bytes())
    await anyio.Path(data / "store.db").write_bytes(raw)
    await anyio.Path(data / "store.db").chmod(0o600)
    return data / "store.db"


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Site]:
    chat = Team("ann", "ann", "team")
    async with chat.open(), scripted_server(script) as model:
        rest = f"[budgets]\nsession = 100000\n{chat.toml}"
        setup = Setup(model.url, tools=("notes",), rest=rest)
        async with running(setup, folder) as site, connected(site.url) as client:
            chat.gateway = site.url
            with anyio.fail_after(LONG_S):
                yield Site(chat, model, client)


async def test_every_session_of_a_room_has_moved_with_all_that_hangs_on_it(tmp_path: Path) -> None:
    await laid_out(tmp_path)
    async with opened(tmp_path) as site:
        call = site.client.call
        sessions = {
            one["session_key"]: one["message_count"]
            for one in (await call("session.list"))["sessions"]
        }
        team = "main:ci:default:room%3Ateam"
        history = await call("chat.history", session_key=team)
        facts = await call("memory.search", session_key=team, query="dog Luna")
        spent = await call("budget.status", session_key=team)
        records = await call("budget.records", session_key=team)
        run = (await call("chat.history", session_key=team))["messages"][0]["run_id"]
        inspected = await call("run.inspect", run_id=run)
        await call("chat.resume", run_id=run)
        events = await site.client.ended(run)

    assert {
        "main:ci:default:room%3Ateam",
        "main:ci:default:room%3Ateam/t~11",
        "main:ci:default:ann",
        "main:ci:default:both",
        "main:ci:default:room%3Aboth",
        "main:ci:default:room%3Asolo",
        "main:ci:default:direct%3Aroom%3Aodd",
    } == set(sessions)
    assert history["messages"][0]["content"] == "My dog is called Luna"
    assert any("Luna" in json.dumps(one) for one in facts["results"])
    lasting = [one["used"] for one in spent["budgets"] if one["resets_at"] is None]
    assert lasting
    assert all(lasting)
    assert len(records["records"]) >= 3
    assert inspected["session_key"] == team
    assert {one["session_key"] for one in events} == {team}


async def test_what_waited_for_a_room_is_answered_there_without_the_words_of_the_chat(
    tmp_path: Path,
) -> None:
    await laid_out(tmp_path)
    async with opened(tmp_path) as site:
        await site.chat.sees("answer to wait here", "team")
        await site.chat.sees("answer to still waiting", "team")
        await site.chat.sees("answer to wait in the chat", "both")
        await site.chat.sees("answer to wait in the room", "both")

    assert "Luna" in site.shown("wait here")
    assert "Tom" in site.shown("wait in the chat")
    assert "Tom" not in site.shown("wait in the room")
    assert len(site.chat.shown) == 4


async def test_a_room_and_a_person_go_on_where_they_were(tmp_path: Path) -> None:
    await laid_out(tmp_path)
    async with opened(tmp_path) as site:
        chat = site.chat
        for number in range(4):
            await site.model.wait_for(number + 1)
        odd = replace(chat, person="room:odd", direct="room:odd", made=200)
        await odd.say("Do you know my bird?")
        await chat.sees("Do you know my bird?", "room:odd")
        solo = replace(chat, person="solo", made=300)
        await solo.say("Do you know my horse?", room="solo", mention=True)
        await chat.sees("Do you know my horse?", "solo")
        found = await site.client.call(
            "memory.search", session_key="main:ci:default:room%3Asolo", query="horse"
        )

    assert "Ivy" in site.shown("Do you know my bird?")
    assert "Fury" in site.shown("Do you know my horse?")
    assert any("Fury" in json.dumps(one) for one in found["results"] if one["kind"] == "fact")


async def test_a_kill_in_the_middle_of_the_move_leaves_all_as_it_was(tmp_path: Path) -> None:
    path = await laid_out(tmp_path)

    def interrupted() -> int:
        with closing(sqlite3.connect(path)) as db:
            db.execute(
                "CREATE TRIGGER stop BEFORE UPDATE OF peer ON session"
                " BEGIN SELECT RAISE(ABORT, 'killed'); END"
            )
            db.commit()
        return 0

    await to_thread.run_sync(interrupted)
    with pytest.raises(Exception):  # noqa: B017, PT011  # whatever it is told as
        async with opened(tmp_path):
            pass

    def left() -> tuple[int, int]:
        with closing(sqlite3.connect(path)) as db:
            version = version_of(db)
            (moved,) = db.execute(
                "SELECT count(*) FROM session WHERE peer LIKE 'room:t%'"
            ).fetchone()
            db.execute("DROP TRIGGER stop")
            db.commit()
        return version, moved

    before = await to_thread.run_sync(left)
    async with opened(tmp_path) as site:
        sessions = (await site.client.call("session.list"))["sessions"]

    assert before == (7, 0)
    assert "room:team" in {one["peer"] for one in sessions}
