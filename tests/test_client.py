"""The client of one file, against a real gateway: every question once, whatever breaks."""

import os
import re
import socket
import subprocess
import sys
import sysconfig
import tomllib
import venv
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway import client
from gateway.client import Client, ConnectionLost, Failed, Refused, connect
from tests.fakes.gateway import Setup, command, running
from tests.fakes.model_server import Asked, Reply, scripted_server

ROOT = Path(__file__).parent.parent
AT_ONCE = (0.01,) * 3


def echo(asked: Asked) -> Reply:
    return Reply(["to ", asked.last_text])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def test_a_question_is_answered_and_its_chunks_come_in_order(tmp_path: Path) -> None:
    async with (
        scripted_server(echo) as model,
        running(Setup(model.url), tmp_path) as site,
        connect(site.url) as gateway,
    ):
        with anyio.fail_after(60):
            chunks = [chunk async for chunk in gateway.ask("hello")]
            done = await gateway.answer("again", peer="other")
            status = await gateway.call("status")

    assert "".join(one["content"] for one in chunks if one["type"] == "content") == "to hello"
    assert [one["seq"] for one in chunks] == [*range(1, len(chunks) + 1)]
    assert (chunks[-1]["type"], done["response"]) == ("done", "to again")
    assert status["ready"] is True


async def test_many_ask_over_one_connection_and_each_gets_its_own_answer(tmp_path: Path) -> None:
    answers: dict[str, str] = {}
    names = [f"p{number}" for number in range(30)]
    async with (
        scripted_server(echo) as model,
        running(Setup(model.url), tmp_path) as site,
        connect(site.url) as gateway,
    ):

        async def ask(name: str) -> None:
            answers[name] = (await gateway.answer(name, peer=name))["response"]

        await at_once(ask, names)

    assert answers == {name: f"to {name}" for name in names}


async def at_once(act: Callable[[str], Coroutine[Any, Any, None]], names: Sequence[str]) -> None:
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            for name in names:
                group.start_soon(act, name)


class Listener:
    """Asks, and tells when the answer has begun and why it ended."""

    def __init__(self, gateway: Client) -> None:
        self.gateway = gateway
        self.heard: list[Mapping[str, Any]] = []
        self.begun, self.ended = anyio.Event(), anyio.Event()
        self.lost = False

    async def listen(self) -> None:
        try:
            async for chunk in self.gateway.ask("hello"):
                self.heard.append(chunk)
                if chunk["type"] == "content":
                    self.begun.set()
        except ConnectionLost:
            self.lost = True
        self.ended.set()


async def within(event: anyio.Event) -> None:
    with anyio.fail_after(60):
        await event.wait()


def never_at_first(asked: Asked) -> Reply:
    if asked.number == 1:
        return Reply(["to ", "nobody"], gates={2: anyio.Event()})
    return echo(asked)


async def test_after_kill_9_in_the_middle_it_goes_on_and_nothing_is_asked_twice(
    tmp_path: Path,
) -> None:
    async with scripted_server(never_at_first) as model, anyio.create_task_group() as group:
        config, port = await Setup(model.url).written(tmp_path), free_port()
        async with command(config, port) as first, connect(first.url) as gateway:
            listener = Listener(gateway)
            group.start_soon(listener.listen)
            await within(listener.begun)
            first.kill()
            await first.exit_code()
            async with command(config, port):
                await within(listener.ended)
                key = listener.heard[0]["session_key"]
                history = await gateway.call("chat.history", session_key=key)

    seqs = [chunk["seq"] for chunk in listener.heard]
    assert seqs == sorted(set(seqs))
    end = listener.heard[-1]
    assert (end["type"], end["response"]) == ("done", "to hello")
    assert [one["role"] for one in history["messages"]] == ["user", "assistant"]


async def test_a_gateway_that_does_not_come_back_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    async with scripted_server(never_at_first) as model, anyio.create_task_group() as group:
        config = await Setup(model.url).written(tmp_path)
        async with command(config) as site, connect(site.url, waits_s=AT_ONCE) as gateway:
            listener = Listener(gateway)
            group.start_soon(listener.listen)
            await within(listener.begun)
            site.kill()
            await within(listener.ended)

    assert listener.lost


async def test_a_run_that_fails_says_why(tmp_path: Path) -> None:
    async with (
        scripted_server(lambda asked: Reply(status=400)) as model,
        running(Setup(model.url), tmp_path) as site,
        connect(site.url) as gateway,
    ):
        with anyio.fail_after(60), pytest.raises(Failed) as failed:
            await gateway.answer("hello")

    assert failed.value.chunk["error_type"] == "provider_error"


async def test_what_is_refused_says_why(tmp_path: Path) -> None:
    async with (
        scripted_server(echo) as model,
        running(Setup(model.url, gateway='token = "right"'), tmp_path) as site,
        connect(site.url, "right") as gateway,
    ):
        with anyio.fail_after(60), pytest.raises(Refused, match="no agent") as refused:
            await gateway.answer("hello", agent="nobody")
        with anyio.fail_after(60), pytest.raises(Refused, match="401"):
            async with connect(site.url, "wrong"):
                pass

    assert refused.value.code == -32004
    assert refused.value.data["type"] == "not_found"


async def test_where_nobody_listens_it_gives_up() -> None:
    address = f"http://127.0.0.1:{free_port()}"
    with anyio.fail_after(60), pytest.raises(ConnectionLost):
        async with connect(address):
            pass


def test_it_stays_small_and_asks_for_nothing_of_the_gateway() -> None:
    text = Path(client.__file__).read_text(encoding="utf-8")
    imports = re.findall(r"^(?:from|import) (\w+)", text, re.MULTILINE)

    assert text.count("\n") < 200
    assert "gateway" not in imports


USER = """
import anyio

from exogate_client import Chunk, Client, ConnectionLost, Failed, Refused, connect


def is_text(chunk: Chunk) -> bool:
    return bool(chunk["type"] == "content")


async def main(token: str | None) -> str:
    async with connect("http://127.0.0.1:7200", token, waits_s=[0.1]) as gateway:
        same: Client = gateway
        said = [str(chunk["content"]) async for chunk in same.ask("hi", peer="p") if is_text(chunk)]
        try:
            done = await gateway.answer("hi")
        except Failed as error:
            return str(error.chunk["message"])
        except (ConnectionLost, Refused) as error:
            return str(error)
        return "".join(said) + str(done["response"])


print(anyio.run(main, None))
"""


@pytest.fixture(scope="module")
def types_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of what is no part of the project."""
    return tmp_path_factory.mktemp("types")


@pytest.mark.parametrize("is_installed", [False, True])
def test_it_passes_strict_typing_in_the_project_of_a_user(
    tmp_path: Path, types_cache: Path, is_installed: bool
) -> None:
    """As a copy beside the program, and as the package that the wheel installs."""
    copy, python = tmp_path / "exogate_client.py", sys.executable
    if is_installed:
        venv.create(tmp_path / "venv")
        python = str(tmp_path / "venv" / "bin" / "python")
        (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
        (site / "others.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
        placed = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
        copy = site / placed["gateway/client.py"]
        copy.parent.mkdir()
        (site / placed["gateway/py.typed"]).touch()
    copy.write_bytes(Path(client.__file__).read_bytes())
    (tmp_path / "program.py").write_text(USER, encoding="utf-8")

    words = ["--strict", "--warn-unreachable", "--cache-dir", str(types_cache)]
    words += ["--python-executable", python, *([] if is_installed else [str(copy)])]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *words, "program.py"],
        cwd=tmp_path,
        env={"PATH": os.defpath},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, ""), done.stdout
