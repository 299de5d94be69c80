"""What is played on a stage when the gateway is killed in the middle of a turn and started again."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import anyio

from tests.fakes.client import WAIT_S, connected, texts_of, types_of
from tests.fakes.gateway import START_S, command
from tests.fakes.model_server import Asked, ModelServer, Reply, scripted_server
from tests.scenarios.plots import echo_of, held
from tests.scenarios.stage import Plot, Scene, Stage, is_told


async def killed(stage: Stage) -> Scene:
    """In the middle of the second reply, after a tool."""
    gate = anyio.Event()

    def script(asked: Asked) -> Reply:
        if asked.number > 3:
            return Reply("That is all.")
        if not is_told(asked):
            return Reply("Let me see. ", calls=[echo_of(1, "hello")])
        if asked.number == 3:
            return Reply("It said hello.")
        return Reply(["It said ", "hello."], gates=held(2, gate, stage))

    async with scripted_server(script) as model:
        config = await stage.setup(model.url, tools=("echo",)).written(stage.folder)
        async with command(config) as site, connected(site.url) as client:
            before = Scene(model, client, site.url)
            run_id = (await before.send("What does it say?"))["run_id"]
            await client.until(run_id, lambda seen: texts_of(seen).endswith("It said "))
            last = client.events[run_id][-1]["seq"]
            site.kill()
            await site.exit_code()
        async with command(config) as site, connected(site.url) as client:
            after = Scene(model, client, site.url, [run_id])
            await client.call("chat.resume", run_id=run_id, after_seq=last)
            await client.ended(run_id)
            await after.read()
            await after.send("And then?")
            await client.ended(after.runs[-1])
    after.earlier.append(before)
    return after


async def killed_at(
    number: int, script: Callable[[Asked], Reply], stage: Stage, **setup: Any
) -> Scene:
    """While the n-th reply is waited for; the scene is what the second process tells of the run."""

    def interrupted(asked: Asked) -> Reply:
        if asked.number == number:
            return Reply("never", gate=anyio.Event())
        was_before = asked.number < number
        return script(asked if was_before else replace(asked, number=asked.number - 1))

    async with scripted_server(interrupted) as model:
        config = await stage.setup(model.url, **setup).written(stage.folder)
        async with command(config) as site, connected(site.url) as client:
            run_id = (await client.send("Go on for ever."))["run_id"]
            with anyio.fail_after(START_S):
                await model.wait_for(number)
            site.kill()
            await site.exit_code()
        async with command(config) as site, connected(site.url, wait_s=2 * WAIT_S) as client:
            after = Scene(model, client, site.url, [run_id])
            await client.call("chat.resume", run_id=run_id, after_seq=0)
            await client.ended(run_id)
            await after.read()
    return after


async def undisturbed(script: Callable[[Asked], Reply], stage: Stage, **setup: Any) -> Scene:
    """The same, and nobody is killed."""
    async with stage.open(script, is_plugin=True, **setup) as scene:
        await scene.ask("Go on for ever.")
        await scene.read()
    return scene


async def killed_in_a_tool(stage: Stage) -> Scene:
    """One of two calls has its result; the page of the other comes in the second process only."""

    def page(asked: Asked) -> Reply:
        is_early = asked.path == "/b" and asked.number <= 2
        plain = {"content-type": "text/plain"}
        gate = anyio.Event() if is_early else None
        return Reply(body=f"page {asked.path}".encode(), headers=plain, gate=gate)

    async with scripted_server(page) as pages:
        scene = await _read_both(stage, pages)
    scene.paths = [asked.path for asked in pages.requests]
    return scene


async def _read_both(stage: Stage, pages: ModelServer) -> Scene:
    site = pages.url.removesuffix("/v1")

    def script(asked: Asked) -> Reply:
        a, b = (json.dumps({"url": f"{site}/{name}"}) for name in "ab")
        calls = [("a", "fetch", a), ("b", "fetch", b)]
        return Reply("Both are read.") if is_told(asked) else Reply("", calls=calls)

    async with scripted_server(script) as model:
        setup = stage.setup(model.url, tools=("fetch",), grants={"fetch": (f"http:{site}",)})
        config = await setup.written(stage.folder)
        async with command(config) as gateway, connected(gateway.url) as client:
            run_id = (await client.send("Read both."))["run_id"]
            await client.until(run_id, lambda seen: "tool_result" in types_of(seen))
            with anyio.fail_after(WAIT_S):
                await pages.wait_for(2)
            gateway.kill()
            await gateway.exit_code()
        async with command(config) as gateway, connected(gateway.url) as client:
            scene = Scene(model, client, gateway.url, [run_id])
            await client.call("chat.resume", run_id=run_id, after_seq=0)
            await client.ended(run_id)
            await scene.read()
    return scene


KILLED: dict[str, Plot] = {"killed": killed, "killed in a tool": killed_in_a_tool}
