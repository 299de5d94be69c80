"""What is played on a stage when nothing goes wrong: answers, tools, branches, notices."""

import json
from collections.abc import Sequence

import anyio

from bench.model_server import Call
from tests.fakes.client import WAIT_S, Event, connected, texts_of
from tests.fakes.model_server import Asked, Reply, scripted_server
from tests.scenarios.stage import Plot, Scene, Stage, is_told, talk_to

CROSSING = """
[[rules]]
id = "tell-the-others"
on = ["tool.call.success"]
once_per = "run"
do = [{ notify = "A tool has answered elsewhere.", inject_at = "cross_session" }]
"""
# Each tells of itself by where it comes in.
TELLING = """
[[rules]]
id = "at-the-start"
on = ["QUERY_START"]
when = "history.messages == 0"
do = [
  { notify = "at once", inject_at = "immediate" },
  { notify = "urgent", inject_at = "immediate", priority = "critical" },
  { notify = "after calc", after_tool = "calc" },
  { notify = "to the client", to = "client" },
]

[[rules]]
id = "after-a-tool"
on = ["on_tool_complete"]
when = "payload.tool == 'echo'"
do = [
  { notify = "after the tool", inject_at = "after_tool" },
  { notify = "at the next turn", to = "model" },
]
"""


def echo_of(number: int, text: str) -> Call:
    return f"c{number}", "echo", json.dumps({"text": text})


def answering(asked: Asked) -> Reply:
    return Reply(f"answer to {talk_to(asked)[-1][1]}")


async def basic(stage: Stage) -> Scene:
    async with stage.open([Reply(["It ", "is ", "so."])]) as scene:
        await scene.ask("Is it so?")
        await scene.read()
    return scene


async def single_tool(stage: Stage) -> Scene:
    """One call; then an answer that takes up what the tool said."""

    def script(asked: Asked) -> Reply:
        if is_told(asked):
            return Reply(f"It said {talk_to(asked)[-1][1]}.", usage=(30, 3))
        return Reply("Let me see. ", calls=[echo_of(1, "hello")], usage=(20, 2))

    async with stage.open(script, tools=("echo",)) as scene:
        await scene.ask("What does it say?")
        await scene.read()
    return scene


async def parallel_tools(stage: Stage) -> Scene:
    """Two pages are read at once: neither is given before both were asked for. They come in the other
    order than they were called for; a third call, between them, fails."""
    gates = {path: anyio.Event() for path in ("/a", "/b")}
    plain = {"content-type": "text/plain"}

    def page(asked: Asked) -> Reply:
        body = f"page {asked.path}".encode()
        return Reply(body=body, headers=plain, gate=gates[asked.path])

    async with scripted_server(page) as pages:
        site = pages.url.removesuffix("/v1")

        def script(asked: Asked) -> Reply:
            if is_told(asked):
                return Reply("Both are read.")
            a, b = (json.dumps({"url": site + path}) for path in gates)
            wrong = ("wrong", "calc", '{"expression":"1/0"}')
            return Reply("", calls=[("a", "fetch", a), wrong, ("b", "fetch", b)])

        grants = {"fetch": (f"http:{site}",)}
        async with stage.open(script, tools=("fetch", "calc"), grants=grants) as scene:
            run_id = (await scene.send("Read both."))["run_id"]
            with anyio.fail_after(WAIT_S):
                await pages.wait_for(len(gates))
            await scene.client.until(run_id, lambda seen: "wrong" in _answered(seen))
            gates["/b"].set()
            await scene.client.until(run_id, lambda seen: "b" in _answered(seen))
            gates["/a"].set()
            await scene.ended(run_id)
            await scene.read()
    return scene


def _answered(seen: Sequence[Event]) -> set[str]:
    return {one["tool_call"]["id"] for one in seen if one["type"] == "tool_result"}


async def streaming(stage: Stage) -> Scene:
    """The model is held in its middle until the client has heard the beginning."""
    rest = anyio.Event()
    async with stage.open([Reply(["one ", "two ", "three"], gates=held(3, rest, stage))]) as scene:
        run_id = (await scene.send("Count."))["run_id"]
        await scene.client.until(run_id, lambda seen: texts_of(seen) == "one two ")
        rest.set()
        await scene.ended(run_id)
    return scene


def held(piece: int, gate: anyio.Event, stage: Stage) -> dict[int, anyio.Event]:
    """Before the text's n-th piece: the other wire says more before its first one."""
    return {piece if stage.wire == "openai" else piece + 2: gate}


async def observed(stage: Stage) -> Scene:
    """One tool call, for a subscriber that asked for three types by either of their names."""
    script = [Reply("", calls=[echo_of(1, "hello")]), Reply("Well.")]
    async with stage.open(script, tools=("echo",)) as scene:
        async with connected(scene.url) as other:
            types = ["QUERY_START", "tool.call.success", "SESSION_END"]
            await other.call("events.subscribe", types=types)
            await scene.ask("What does it say?")
            await other.until_told(lambda told: len(told) >= len(types))
        scene.beside.append(other)
    return scene


async def branches(stage: Stage) -> Scene:
    """A question, two that go on from its answer, and one more on the first of these."""
    async with stage.open(answering) as scene:
        root = (await scene.ask("root"))[-1]["context_id"]
        left = (await scene.ask("left", context_id=root))[-1]["context_id"]
        await scene.ask("right", context_id=root)
        await scene.read()
        await scene.ask("more left", context_id=left)
        await scene.read()
    return scene


async def cross_session(stage: Stage) -> Scene:
    """A tool answers in one session of a person; another one is told of it, once."""

    def script(asked: Asked) -> Reply:
        if talk_to(asked)[-1] == ("question", "use it"):
            return Reply("", calls=[echo_of(1, "hello")])
        return Reply("Well.")

    async with stage.open(script, tools=("echo",), rest=CROSSING) as scene:
        await scene.ask("use it", peer="here")
        await scene.ask("and here?", peer="here")
        await scene.ask("what is new?", peer="there")
        await scene.ask("and now?", peer="there")
        await scene.read("there")
    return scene


async def not_streamed(stage: Stage) -> Scene:
    """The same as `single_tool`, each reply in one piece."""

    def script(asked: Asked) -> Reply:
        if is_told(asked):
            return Reply("It said so.", usage=(30, 3))
        return Reply("Let me see. ", calls=[echo_of(1, "hello")], usage=(20, 2))

    async with stage.open(script, tools=("echo",), agent="stream = false\n") as scene:
        await scene.ask("What does it say?")
        await scene.read()
    return scene


async def written_calls(stage: Stage) -> Scene:
    """A model that writes its calls as text."""
    text = (
        'Let me see. <function_calls><invoke name="echo">'
        '<parameter name="text">a < b</parameter></invoke></function_calls>'
    )
    script = [Reply(text), Reply("It said so.")]
    recover = 'tool_markup = "recover"\n'
    async with stage.open(script, tools=("echo",), provider=recover) as scene:
        await scene.ask("What does it say?")
        await scene.read()
    return scene


async def too_many_calls(stage: Stage) -> Scene:
    """Three calls in a turn that may have two."""
    calls = [echo_of(number, f"text {number}") for number in (1, 2, 3)]
    agent = "[agent.limits]\nmax_tool_calls_per_turn = 2\nmax_parallel_tools = 1\n"
    async with stage.open(
        [Reply("", calls=calls), Reply("Well.")], tools=("echo",), agent=agent
    ) as scene:
        await scene.ask("Say three things.")
        await scene.read()
    return scene


async def notices(stage: Stage) -> Scene:
    """Rules that tell something at each point, to the model, to the client, or to both."""
    script = [
        Reply("", calls=[echo_of(1, "one")]),
        Reply("", calls=[("c2", "calc", '{"expression":"1+1"}')]),
        Reply("Well."),
        Reply("And well again."),
    ]
    async with stage.open(script, tools=("echo", "calc"), rest=TELLING) as scene:
        await scene.ask("Use both.")
        await scene.read()
        await scene.ask("And again?")
    return scene


ANSWERS: dict[str, Plot] = {
    "basic": basic,
    "single tool": single_tool,
    "parallel tools": parallel_tools,
    "streaming": streaming,
    "observed": observed,
    "branches": branches,
    "cross session": cross_session,
    "not streamed": not_streamed,
    "written calls": written_calls,
    "too many calls": too_many_calls,
    "notices": notices,
}
