"""What is played on a stage when a run is stopped: by a limit, by its user, by the model's failing."""

import json
from dataclasses import replace

import anyio

from gateway.config.values import GatewayConfig
from tests.fakes.client import WAIT_S, texts_of, types_of
from tests.fakes.model_server import Asked, Reply, scripted_server
from tests.scenarios.plots import answering, echo_of
from tests.scenarios.stage import Plot, Scene, Stage, is_told

WORDS = [f"word {number:02} is here. " for number in range(80)]  # 17 characters each
LIMITED = "[agent.limits]\n"
NO_ECHO = """
[[rules]]
id = "no-echo"
on = ["tool.call.started"]
when = "payload.tool == 'echo'"
do = [{ interrupt = "Nobody may use echo." }]
"""


def calling(asked: Asked) -> Reply:
    """Never content: says which step it is, and calls again, with something else each time."""
    number = asked.number
    return Reply(f"step {number}. ", calls=[echo_of(number, f"text {number}")])


def repeating(asked: Asked) -> Reply:
    """Always the same call."""
    return Reply("", calls=[echo_of(asked.number, "again")])


def failing(asked: Asked) -> Reply:
    """Always a call that must fail, and never the same."""
    number = asked.number
    return Reply(f"try {number}. ", calls=[(f"c{number}", f"nothing_{number}", "{}")])


async def max_iterations(stage: Stage) -> Scene:
    limits = f"{LIMITED}max_iterations = 3\n"
    async with stage.open(calling, tools=("echo",), agent=limits) as scene:
        await scene.ask("Go on for ever.")
        await scene.read()
        await scene.ask("And again.")
    return scene


async def token_budget(stage: Stage) -> Scene:
    """The model says more than the request allows, and then waits: only a hang-up ends it."""
    gates = {len(WORDS): anyio.Event()}
    async with stage.open([Reply(WORDS, gates=gates), Reply("Short.")]) as scene:
        await scene.ask("Go on for ever.", limits={"token_budget": 100})
        with anyio.fail_after(WAIT_S):
            await scene.model.requests[0].disconnected.wait()
        await scene.read()
        await scene.ask("And now?")
    return scene


async def token_budget_between_turns(stage: Stage) -> Scene:
    """Each reply is counted as 410 tokens; 1200 are allowed."""

    def script(asked: Asked) -> Reply:
        return Reply(f"step {asked.number}. ", calls=calling(asked).calls, usage=(400, 10))

    limits = f"{LIMITED}token_budget = 1200\n"
    async with stage.open(script, tools=("echo",), agent=limits) as scene:
        await scene.ask("Go on for ever.")
        await scene.read()
    return scene


def in_a_hurry(config: GatewayConfig) -> GatewayConfig:
    """A second a run: less than a file may say."""
    [agent] = config.agents
    limits = replace(agent.limits, timeout_seconds=1)
    return replace(config, agents=(replace(agent, limits=limits),))


async def timeout(stage: Stage) -> Scene:
    """The model stops in its middle and never goes on."""
    script = [Reply(WORDS[:5], gates={5: anyio.Event()}), Reply("Short.")]
    async with stage.open(script, change=in_a_hurry) as scene:
        await scene.ask("Take your time.")
        with anyio.fail_after(WAIT_S):
            await scene.model.requests[0].disconnected.wait()
        await scene.read()
        await scene.ask("And now?")
    return scene


async def no_progress(stage: Stage) -> Scene:
    async with stage.open(repeating, tools=("echo",)) as scene:
        await scene.ask("Again and again.")
        await scene.read()
    return scene


async def loop_of_two(stage: Stage) -> Scene:
    """A, B, A, B, A: never the same twice in a row, and yet a loop. Then the model comes to its senses."""

    def script(asked: Asked) -> Reply:
        if asked.number > 5:
            return Reply("Enough.")
        return Reply("", calls=[echo_of(asked.number, "AB"[(asked.number - 1) % 2])])

    async with stage.open(script, tools=("echo",)) as scene:
        await scene.ask("Round and round.")
        await scene.ask("Once more.")
    return scene


async def error_limit(stage: Stage) -> Scene:
    async with stage.open(failing, tools=("echo",)) as scene:
        await scene.ask("Do the impossible.")
        await scene.read()
    return scene


async def errors_with_a_success_between(stage: Stage) -> Scene:
    """Two turns that fail, one that does not, two that fail again: never three in a row."""

    def script(asked: Asked) -> Reply:
        if asked.number > 5:
            return Reply("Enough.")
        return calling(asked) if asked.number == 3 else failing(asked)

    async with stage.open(script, tools=("echo",)) as scene:
        await scene.ask("Try hard.")
    return scene


async def cancelled(stage: Stage) -> Scene:
    """Stopped by its user in the middle of a stream; then another message."""
    held = {2 if stage.wire == "openai" else 4: anyio.Event()}

    def script(asked: Asked) -> Reply:
        return Reply(["half of ", "it"], gates=held) if asked.number == 1 else answering(asked)

    async with stage.open(script) as scene:
        run_id = (await scene.send("first"))["run_id"]
        await scene.client.until(run_id, texts_of)
        await scene.client.call("chat.abort", run_id=run_id)
        await scene.ended(run_id)
        with anyio.fail_after(WAIT_S):
            await scene.model.requests[0].disconnected.wait()
        await scene.read()
        await scene.ask("second")
    return scene


async def cancelled_in_a_tool(stage: Stage) -> Scene:
    """One call has its result, another one waits for a page that never comes."""

    async with scripted_server([Reply(gate=anyio.Event())]) as pages:
        site = pages.url.removesuffix("/v1")
        endless = ("c2", "fetch", json.dumps({"url": f"{site}/endless"}))
        script = [Reply("", calls=[echo_of(1, "hello"), endless]), Reply("Well.")]
        grants = {"fetch": (f"http:{site}",)}
        async with stage.open(script, tools=("echo", "fetch"), grants=grants) as scene:
            run_id = (await scene.send("Read it."))["run_id"]
            with anyio.fail_after(WAIT_S):
                await pages.wait_for(1)
            await scene.client.until(run_id, lambda seen: "tool_result" in types_of(seen))
            await scene.client.call("chat.abort", run_id=run_id)
            await scene.ended(run_id)
            with anyio.fail_after(WAIT_S):
                await pages.requests[0].disconnected.wait()
            await scene.read()
            await scene.ask("And now?")
    return scene


async def polling(stage: Stage) -> Scene:
    """The same call again and again, and each time another result."""

    def page(asked: Asked) -> Reply:
        return Reply(body=f"state {asked.number}".encode(), headers={"content-type": "text/plain"})

    async with scripted_server(page) as pages:
        site = pages.url.removesuffix("/v1")

        def script(asked: Asked) -> Reply:
            look = (f"c{asked.number}", "fetch", json.dumps({"url": f"{site}/state"}))
            return Reply("It is done.") if asked.number > 6 else Reply("", calls=[look])

        grants = {"fetch": (f"http:{site}",)}
        async with stage.open(script, tools=("fetch",), grants=grants) as scene:
            await scene.ask("Wait for it.")
    return scene


async def fallback(stage: Stage) -> Scene:
    """The first model fails; another one of the same service answers, with a tool between."""

    def script(asked: Asked) -> Reply:
        if asked.body["model"] != "spare":
            return Reply(status=503)
        return Reply("Well.") if is_told(asked) else Reply("", calls=[echo_of(1, "hello")])

    agent = '[agent.fallback]\nprovider = "fake"\nmodel = "spare"\n'
    async with stage.open(
        script, tools=("echo",), agent=agent, provider="max_retries = 0\n"
    ) as scene:
        await scene.ask("Is it so?")
    return scene


async def stopped_by_a_rule(stage: Stage) -> Scene:
    async with stage.open([Reply("", calls=[echo_of(1, "x")])], tools=("echo",), rest=NO_ECHO) as (
        scene
    ):
        await scene.ask("Use it.")
        await scene.read()
    return scene


async def provider_failure(stage: Stage) -> Scene:
    async with stage.open([Reply(status=400), Reply("Well.")]) as scene:
        await scene.ask("Is it so?")
        await scene.read()
        await scene.ask("And now?")
    return scene


async def provider_breaks_off(stage: Stage) -> Scene:
    """Two pieces of text, and then a broken connection."""
    pieces = 3 if stage.wire == "openai" else 5
    broken = Reply(["It ", "is ", "so."], stop_after=pieces, ending="reset")
    async with stage.open([broken, Reply("Well.")]) as scene:
        await scene.ask("Is it so?")
        await scene.read()
        await scene.ask("And now?")
    return scene


async def nearly_full(stage: Stage) -> Scene:
    """The first tool's result fills most of what the model can read; the second adds a little."""

    def script(asked: Asked) -> Reply:
        if asked.number > 2:
            return Reply("Enough.")
        return Reply("", calls=[echo_of(asked.number, "x" * 7000 if asked.number == 1 else "y")])

    agent = "context_window = 4096\nmax_tokens = 256\n"
    async with stage.open(script, tools=("echo",), agent=agent) as scene:
        await scene.ask("Read it.")
    return scene


LIMITS: dict[str, Plot] = {
    "max iterations": max_iterations,
    "token budget": token_budget,
    "token budget between turns": token_budget_between_turns,
    "timeout": timeout,
    "no progress": no_progress,
    "loop of two": loop_of_two,
    "error limit": error_limit,
    "errors with a success between": errors_with_a_success_between,
    "cancelled": cancelled,
    "cancelled in a tool": cancelled_in_a_tool,
    "polling": polling,
    "fallback": fallback,
    "stopped by a rule": stopped_by_a_rule,
    "provider failure": provider_failure,
    "provider breaks off": provider_breaks_off,
    "nearly full": nearly_full,
}
