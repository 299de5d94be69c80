"""`exogate run` over a SurrealDB server: it waits for it, goes on with it, and has it for itself."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.fakes.client import http, post_chat
from tests.fakes.clock import now_about
from tests.fakes.gateway import START_S, command, spawned
from tests.fakes.surreal import PASSWORD, USER, SurrealDatabase, SurrealServer, surreal_binary

STORE = """
[gateway]
port = 0
data_dir = "{folder}/data"
[agent]
id = "demo"
provider = "demo"
[store]
url = "{url}"
database = "{database}"
username = "{user}"
password = "{password}"
"""


@pytest.fixture
def program() -> str:
    return surreal_binary()


async def written(folder: Path, url: str, database: str = "main", **more: str) -> Path:
    await anyio.Path(folder).mkdir(exist_ok=True)
    names = {"user": USER, "password": PASSWORD, **more}
    text = STORE.format(folder=folder, url=url, database=database, **names)
    path = folder / "config.toml"
    await anyio.Path(path).write_text(text, encoding="utf-8")
    return path


async def got(url: str, path: str = "/readyz") -> tuple[int, dict[str, Any]]:
    answer = await http(url + path)
    return answer.status, answer.json


async def asked(url: str, message: str, key: str | None = None) -> tuple[int, dict[str, Any]]:
    answer = await post_chat(url, message, key=key, conversation_id="c")
    return answer.status, answer.json


async def until_ready(url: str, status: int = 200, because: str = "") -> dict[str, Any]:
    with anyio.fail_after(START_S):
        while True:
            found, told = await got(url)
            if found == status and because in str(told):
                return told
            await anyio.sleep(0.05)


async def address_of(config: Path) -> str:
    """Of a gateway that waits, which has no banner yet."""
    lock = anyio.Path(config.parent / "data" / "lock")
    with anyio.fail_after(START_S):
        while True:
            text = await lock.read_text() if await lock.exists() else ""
            if "http://" in text:
                return text.split('"url": "')[1].split('"')[0]
            await anyio.sleep(0.02)


async def test_a_store_that_does_not_answer_at_the_start_is_waited_for(
    program: str, tmp_path: Path
) -> None:
    server = SurrealServer(program)
    config = await written(tmp_path, server.url)
    try:
        async with spawned(config) as gateway:
            url = await address_of(config)
            alive, waiting = await got(url, "/healthz"), await got(url)
            refused = await asked(url, "hello")
            await anyio.to_thread.run_sync(server.start)
            assert await gateway.ready()
            answered = await asked(gateway.url, "hello")
            said = await gateway.said()
    finally:
        await anyio.to_thread.run_sync(server.stop)

    assert alive == (200, {"status": "ok"})
    assert waiting[0] == 503
    assert "cannot be reached" in waiting[1]["reasons"][0]
    assert (refused[0], refused[1]["error"]["code"]) == (503, "store_unavailable")
    assert (url, answered[0]) == (gateway.url, 200)
    assert said.count(b'"warning"') == said.count(b"store_awaited") == 1


async def test_a_gateway_that_waits_for_its_store_ends_when_it_is_told(tmp_path: Path) -> None:
    config = await written(tmp_path, SurrealServer("").url)
    async with spawned(config) as gateway:
        await address_of(config)
        gateway.process.send_signal(15)
        code = await gateway.exit_code()

    assert code == 0


async def test_after_kill_9_a_gateway_goes_on_at_once(
    surreal_database: SurrealDatabase, tmp_path: Path
) -> None:
    config = await written(tmp_path, surreal_database.url, surreal_database.database)
    async with command(config) as gateway:
        first = await asked(gateway.url, "my dog is called Luna", "a")
        gateway.kill()
        await gateway.exit_code()
    async with command(config) as gateway:
        again = await asked(gateway.url, "my dog is called Luna", "a")
        answered = await asked(gateway.url, "what is my dog called?")

    assert first[1]["run_id"] == again[1]["run_id"]
    assert "Luna" in answered[1]["response"]


async def test_of_two_gateways_without_a_cluster_the_second_is_refused(
    surreal_database: SurrealDatabase, tmp_path: Path
) -> None:
    place = (surreal_database.url, surreal_database.database)
    config = await written(tmp_path / "a", *place)
    other = await written(tmp_path / "b", *place)
    async with command(config) as gateway:
        async with spawned(other) as second:
            code, said = await second.exit_code(), (await second.said()).decode()
        owner = await anyio.Path(config.parent / "data" / "lock").read_text()
        gateway.process.send_signal(15)
        await gateway.exit_code()
    async with command(other) as after:
        ready = await got(after.url)

    assert (code, ready[0]) == (75, 200)
    assert said.split("in use by gateway ")[1].split(":")[0] in owner
    assert "Traceback" not in said


async def test_a_password_that_is_refused_ends_the_start_with_a_sentence(
    surreal_database: SurrealDatabase, tmp_path: Path
) -> None:
    config = await written(tmp_path, surreal_database.url, password="hunter2-hunter2")
    async with spawned(config) as gateway:
        code, said = await gateway.exit_code(), (await gateway.said()).decode()

    assert code == 78
    assert "check username and password" in said
    assert "hunter2" not in said
    assert "Traceback" not in said


async def test_an_outage_is_told_within_a_second_and_ends_by_itself(
    program: str, tmp_path: Path
) -> None:
    server = SurrealServer(program, f"surrealkv://{tmp_path}/store?sync=every")
    config = await written(tmp_path, server.url)
    await anyio.to_thread.run_sync(server.start)
    async with command(config) as gateway:
        await anyio.to_thread.run_sync(server.kill)
        with anyio.fail_after(now_about(1.0)):
            told = await until_ready(gateway.url, 503)
        refused = await asked(gateway.url, "hello")
        await anyio.to_thread.run_sync(server.start)
        try:
            await until_ready(gateway.url)
            answered = await asked(gateway.url, "hello")
        finally:
            await anyio.to_thread.run_sync(server.stop)

    assert "SurrealDB at" in told["reasons"][0]
    assert (refused[0], answered[0]) == (503, 200)


async def test_a_store_that_falls_silent_is_told_within_three_seconds(
    own_surreal_server: SurrealServer, tmp_path: Path
) -> None:
    server = own_surreal_server
    config = await written(tmp_path, server.url)
    async with command(config) as gateway:
        await anyio.to_thread.run_sync(server.pause)
        try:
            with anyio.fail_after(now_about(3.0)):
                await until_ready(gateway.url, 503)
        finally:
            server.resume()
        await until_ready(gateway.url)
        answered = await asked(gateway.url, "hello")

    assert answered[0] == 200


async def test_a_store_that_comes_back_empty_is_told_and_nothing_is_accepted(
    own_surreal_server: SurrealServer, tmp_path: Path
) -> None:
    server = own_surreal_server  # it keeps everything in memory
    config = await written(tmp_path, server.url)
    async with command(config) as gateway:
        await asked(gateway.url, "hello")
        await anyio.to_thread.run_sync(server.kill)
        await anyio.to_thread.run_sync(server.start)
        await until_ready(gateway.url, 503, because="lost or replaced database")
        refused = await asked(gateway.url, "hello")
        still_runs = gateway.process.poll() is None

    assert (refused[0], still_runs) == (503, True)


def test_a_gateway_with_the_embedded_store_imports_nothing_of_a_server() -> None:
    imports = "import sys; import gateway.app.running, gateway.cli.run; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", imports], capture_output=True, check=True)
    loaded = set(done.stdout.decode().split())

    assert "gateway.store.sqlite" in loaded
    for name in ("cbor2", "nats", "gateway.store.surreal", "gateway.cluster.node"):
        assert name not in loaded
