"""A configuration is put into force while the gateway runs: whole or not at all."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.fakes.client import Client, connected
from tests.fakes.gateway import Setup, Site, running
from tests.fakes.mcp_server import FakeMcp, serving
from tests.fakes.model_server import Asked, ModelServer, Reply, Script, scripted_server
from tests.scenarios.scripts import echo
from tests.scenarios.test_channel_telegram import Telegram

QUIET = "watch = false"
NOWHERE = "http://127.0.0.1:9/v1"


@dataclass
class Desk:
    """An operator at a gateway with a configuration file."""

    site: Site
    client: Client
    model: ModelServer
    folder: Path

    @property
    def file(self) -> anyio.Path:
        return anyio.Path(self.folder / "config.toml")

    async def edit(self, *changes: tuple[str, str]) -> None:
        text = await self.file.read_text(encoding="utf-8")
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        await self.file.write_text(text, encoding="utf-8")

    async def reload(self, **more: object) -> dict[str, Any]:
        told: dict[str, Any] = await self.client.call("config.reload", **more)
        return told

    async def until(self, so: Callable[[Mapping[str, Any]], object]) -> Mapping[str, Any]:
        with anyio.fail_after(60):
            while True:
                told: Mapping[str, Any] = await self.client.call("status")
                if so(told):
                    return told
                await anyio.sleep(0.1)


@asynccontextmanager
async def desk(folder: Path, script: Script = echo, **setup: Any) -> AsyncIterator[Desk]:
    async with scripted_server(script) as model:
        made = Setup(model.url, **{"gateway": QUIET, **setup})
        async with running(made, folder) as site, connected(site.url) as client:
            yield Desk(site, client, model, folder)


# --------------------------------------------------------------------------------- what is planned


async def test_nothing_is_planned_for_a_file_that_means_what_it_meant(tmp_path: Path) -> None:
    async with desk(tmp_path) as at:
        as_it_is = await at.reload()
        await at.edit(('model = "m"', 'model = "m"   # a remark\nmax_tokens = 4096'))
        written_out = await at.reload()

    nothing = {"generation": 1, "changed": [], "restart_needed": [], "errors": []}
    assert [as_it_is, written_out] == [nothing, nothing]


async def test_a_dry_run_says_what_would_change_and_changes_nothing(tmp_path: Path) -> None:
    async with desk(tmp_path) as at:
        await at.edit(('model = "m"', 'model = "other"'))
        planned = await at.reload(dry_run=True)
        await at.client.ask("hi")
        draft = anyio.Path(tmp_path / "draft.toml")
        text = await at.file.read_text()
        await draft.write_text(
            f"{text}\n[budgets]\ndaily = 9_000_000\n[limits]\nmax_iterations = 7"
        )
        other = await at.reload(dry_run=True, path=str(draft))
        refused = await at.client.refused("config.reload", path=str(draft))
        done = await at.reload()

    assert (planned["generation"], planned["changed"]) == (1, ["agent.model"])
    assert at.model.requests[0].body["model"] == "m"
    assert other["changed"] == ["agent.model", "limits.max_iterations", "budgets.daily"]
    assert refused.code == -32602
    assert (done["generation"], done["changed"]) == (2, ["agent.model"])


async def test_what_needs_a_restart_is_named_until_the_old_value_is_back(tmp_path: Path) -> None:
    async with desk(tmp_path) as at:
        await at.edit(("port = 0", "port = 7301"), ('model = "m"', 'model = "n"'))
        rest_applies = await at.reload()
        still = await at.reload()
        status = await at.client.call("status")
        await at.edit(("port = 7301", "port = 0"))
        back = await at.reload()
        healed = await at.client.call("status")

    assert (rest_applies["changed"], rest_applies["restart_needed"]) == (
        ["agent.model"],
        ["gateway.port"],
    )
    assert (still["generation"], still["restart_needed"]) == (2, ["gateway.port"])
    assert (status["healthy"], status["config"]["restart_needed"]) == (False, ["gateway.port"])
    assert (back["generation"], back["restart_needed"], healed["healthy"]) == (2, [], True)


# ---------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("old", "new", "line", "key", "says"),
    [
        ('provider = "fake"', 'provider = "fke"', 15, "agent.provider", "fke"),
        ("[agent]", "[agnt]", 13, "agnt", "agnt"),
        ('model = "m"', 'model = "m', 16, "", "TOML"),
        ('soul_path = "', 'tree = "none.bt"\nsoul_path = "', 17, "agent.tree", "none.bt"),
        ("[agent]", '[[plugins]]\nname = "x"\npath = "config.toml"\n[agent]', 13, "plugins", "x"),
    ],
    ids=["name", "key", "syntax", "tree", "plugin"],
)
async def test_a_bad_file_changes_nothing_and_is_told_once_with_its_place(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    old: str,
    new: str,
    line: int,
    key: str,
    says: str,
) -> None:
    async with desk(tmp_path) as at:
        await anyio.Path(tmp_path / "none.bt").write_text('(tree "t"')
        await at.edit((old, new), ("sk-of-the-test", "sk-of-another"))
        told = [await at.reload() for _ in range(2)]
        status = await at.client.call("status")
        end = await at.client.ask("hi")
        await at.edit((new, old))
        mended = await at.reload()

    error = told[0]["errors"][0]
    assert told[0] == told[1]
    assert (told[0]["generation"], told[0]["changed"]) == (1, [])
    assert (error["source"], error["line"]) == ("config.toml", line)
    assert error["key"].startswith(key)
    assert says in error["message"] or says == "TOML"
    assert error["code"].startswith("CFG")
    assert error["fix"]
    assert (status["healthy"], status["config"]["errors"]) == (False, told[0]["errors"])
    assert (end["type"], at.model.requests[0].headers["authorization"]) == (
        "done",
        "Bearer sk-of-the-test",
    )
    assert (mended["generation"], mended["errors"]) == (2, [])
    refused = [one for one in caplog.records if one.getMessage() == "config_refused"]
    assert len(refused) == len(told[0]["errors"])


# -------------------------------------------------------------------------------- what is in force


async def test_messages_that_wait_are_answered_by_the_new_one_and_those_of_a_gone_agent_are_told(
    tmp_path: Path,
) -> None:
    held = anyio.Event()

    def script(asked: Asked) -> Reply:
        return Reply(f"Number {asked.number}.", gate=held if asked.number < 3 else None)

    more = '[[agents]]\nid = "{}"\nprovider = "fake"\nmodel = "m"\n'
    async with desk(tmp_path, script, rest=more.format("ops")) as at:
        send = at.client.send
        runs = [await send("one"), await send("a", agent="ops")]
        with anyio.fail_after(60):
            await at.model.wait_for(2)
        runs += [await send("two"), await send("b", agent="ops")]
        await at.edit((more.format("ops"), ""), ('model = "m"', 'model = "n"'))
        told = await at.reload()
        held.set()
        ends = [(await at.client.ended(run["run_id"]))[-1] for run in runs]
        unknown = await at.client.refused("chat.send", content="c", agent="ops")

    assert "agents.ops" in told["changed"]
    assert [end["type"] for end in ends] == ["done", "done", "done", "error"]
    assert ends[3]["error_type"] == "config_error"
    assert "'ops'" in ends[3]["message"]
    assert [one.body["model"] for one in at.model.requests] == ["m", "m", "n"]
    assert unknown.code in {-32602, -32004}


async def test_a_budget_holds_at_once_also_for_a_turn_at_work(tmp_path: Path) -> None:
    held = anyio.Event()
    call = Reply(calls=[("c1", "echo", '{"text":"hi"}')], gate=held)
    async with desk(tmp_path, [call, Reply("Never.")], tools=("echo",)) as at:
        run = await at.client.send("one")
        with anyio.fail_after(60):
            await at.model.wait_for(1)
        await at.edit(("[agent]", "[budgets]\ndaily = 1\n[agent]"))
        await at.reload()
        held.set()
        end = (await at.client.ended(run["run_id"]))[-1]

    assert end.get("error_type") == "budget_exceeded" or end.get("reason") == "token_budget"
    assert len(at.model.requests) == 1


async def test_sockets_of_tokens_that_are_gone_or_changed_are_closed_and_no_others(
    tmp_path: Path,
) -> None:
    table = '[[tokens]]\nname = "{0}"\ntoken = "token-of-{0}-token-of-{0}"\n'
    names = ("ann", "bob", "cid")
    tables = "".join(map(table.format, names))
    setup = Setup(NOWHERE, rest=tables, gateway=f'{QUIET}\ntoken = "operators-own-token"')
    file = anyio.Path(tmp_path / "config.toml")
    async with (
        running(setup, tmp_path) as site,
        connected(site.url, "token-of-ann-token-of-ann") as ann,
        connected(site.url, "token-of-bob-token-of-bob") as bob,
        connected(site.url, "token-of-cid-token-of-cid") as cid,
        connected(site.url, "operators-own-token") as operator,
    ):
        text = (await file.read_text()).replace(table.format("ann"), "")
        wider = table.format("bob") + 'scopes = ["read"]\n'
        await file.write_text(text.replace(table.format("bob"), wider))
        told = await operator.call("config.reload")
        with anyio.fail_after(60):
            await ann.closed.wait()
            await bob.closed.wait()
        pongs = [await one.call("ping") for one in (cid, operator)]
    codes = [ann.socket.close_code, bob.socket.close_code]

    assert set(told["changed"]) == {"tokens.ann", "tokens.bob.scopes"}
    assert (codes, pongs) == ([4401, 4401], ["pong", "pong"])


async def test_a_server_that_is_configured_as_before_keeps_its_connection(tmp_path: Path) -> None:
    call = Reply(calls=[("c1", "books__echo", '{"text":"hi"}')])
    script = [call, Reply("One."), call, Reply("Two."), Reply("Three.")]
    async with serving(FakeMcp(is_legacy=True)) as books:
        rest = f'[mcp.servers.books]\nurl = "{books.url}"\n'
        async with desk(tmp_path, script, tools=("mcp:books",), rest=rest) as at:
            said = [(await at.client.ask("a"))["response"]]
            sessions = {one.get("mcp-session-id") for one in books.requests} - {None}
            await at.edit(('model = "m"', 'model = "n"'))
            await at.reload()
            said.append((await at.client.ask("b"))["response"])
            after = {one.get("mcp-session-id") for one in books.requests} - {None}
            await at.edit((rest, ""), ('tools = ["mcp:books"]', "tools = []"))
            await at.reload()
            said.append((await at.client.ask("c"))["response"])
            gone = (await at.client.call("status"))["mcp"]

    assert said == ["One.", "Two.", "Three."]
    assert len(books.calls) == 2
    assert sessions <= after
    assert len([one for one in after if one not in sessions]) <= 1  # of the one person's calls
    assert gone == []


async def test_a_channel_keeps_its_connection_unless_it_changes_itself(tmp_path: Path) -> None:
    chat = Telegram(person="7", direct="7", group="-100", listed=True)
    async with chat.open(), desk(tmp_path, rest=chat.toml) as at:
        with anyio.fail_after(60):
            await chat.say("hello")
            await chat.sees("hello")
            room = at.site.rooms.channels
            before = await room.wait_open("telegram")
            await at.edit(('model = "m"', 'model = "n"'))
            kept = await at.reload()
            same = await room.wait_open("telegram") is before
            await at.edit(('username = "exo_bot"', 'username = "exo_other"'))
            changed = await at.reload()
            other = await room.wait_open("telegram") is not before
            await chat.say("again")
            await chat.sees("again")
            text = await at.file.read_text()
            await at.file.write_text(text.replace(chat.toml.replace("exo_bot", "exo_other"), ""))
            removed = await at.reload()
            asked = len(chat.calls)
            told = await at.client.call("status")

    assert (kept["changed"], same) == (["agent.model"], True)
    assert (changed["changed"], other) == (["channels.telegram.config.username"], True)
    assert set(removed["changed"]) == {"channels.telegram", "plugins.telegram"}
    assert told["channels"] == []
    assert len(chat.calls) - asked <= 1
    assert [text for text in chat.texts() if "hello" in text or "again" in text] == chat.texts()


async def test_a_channel_may_come_while_the_gateway_runs(tmp_path: Path) -> None:
    chat = Telegram(person="7", direct="7", group="-100", listed=True)
    async with chat.open(), desk(tmp_path) as at:
        text = await at.file.read_text()
        await at.file.write_text(f"{text}\n{chat.toml}")
        told = await at.reload()
        with anyio.fail_after(60):
            await chat.say("hello")
            await chat.sees("hello")

    assert set(told["changed"]) == {"channels.telegram", "plugins.telegram"}


# ------------------------------------------------------------------------------------- the watch


async def replaced(file: anyio.Path, text: str) -> None:
    """As most editors save."""
    fresh = file.with_name("config.toml.tmp")
    await fresh.write_text(text)
    await fresh.replace(file)


async def put_away_first(file: anyio.Path, text: str) -> None:
    """As editors do that keep a backup."""
    await file.rename(file.with_name("config.toml~"))
    await file.write_text(text)


async def linked(file: anyio.Path, text: str) -> None:
    """As a folder of another machine is mounted: a link leads to the next version."""
    there = file.with_name("elsewhere.toml")
    await there.write_text(text)
    await file.unlink()
    await file.symlink_to(there)


async def half_first(file: anyio.Path, text: str) -> None:
    """As a slow writer saves."""
    await file.write_text(text[: text.index('model = "') + 9])
    await anyio.sleep(0.05)
    await file.write_text(text)


@pytest.mark.parametrize("save", [replaced, put_away_first, linked, half_first])
async def test_a_file_is_reloaded_however_it_is_saved(tmp_path: Path, save: Any) -> None:
    async with desk(tmp_path, gateway="") as at:
        text = await at.file.read_text()
        await save(at.file, text.replace('model = "m"', 'model = "n"'))
        told = await at.until(lambda told: told["generation"] == 2)
        await save(at.file, text)
        await at.until(lambda told: told["generation"] == 3)

    assert told["healthy"] is True


async def test_a_call_tells_of_what_the_watch_has_just_noticed(tmp_path: Path) -> None:
    async with desk(tmp_path, gateway="") as at:
        await at.edit(('model = "m"', 'model = "n"'))
        await at.until(lambda told: told["generation"] == 2)
        told = [await at.reload() for _ in range(2)]

    assert [(one["generation"], one["changed"]) for one in told] == [(2, ["agent.model"]), (2, [])]


async def test_a_secret_file_that_changes_is_taken_up(tmp_path: Path) -> None:
    secret = anyio.Path(tmp_path / "key")
    await secret.write_text("sk-first-of-all")
    await secret.chmod(0o600)
    async with desk(tmp_path, gateway="", key=f"${{file:{secret}}}") as at:
        await at.client.ask("one")
        await secret.write_text("sk-second-one")
        await at.until(lambda told: told["generation"] == 2)
        await at.client.ask("two")

    keys = [one.headers["authorization"] for one in at.model.requests]
    assert keys == ["Bearer sk-first-of-all", "Bearer sk-second-one"]
