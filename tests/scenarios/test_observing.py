"""What an operator sees of a message: a line in the log, and figures at /metrics."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel

from tests.fakes.client import http, post_chat
from tests.fakes.gateway import Setup, command
from tests.fakes.model_server import Reply, scripted_server

FIELDS = (
    "at level event logger run session agent channel person reason iterations tools tokens cost_usd"
    " queue_ms model_ms tools_ms store_ms total_ms"
)
PRICES = "prices = { m = { input = 1, output = 2 } }"


async def finished(folder: Path, count: int = 1) -> Sequence[dict[str, Any]]:
    """The lines of so many runs, from the files."""
    with anyio.fail_after(60):
        while True:
            lines = []
            async for path in anyio.Path(folder / "data" / "logs").iterdir():
                text = await path.read_text("utf-8")
                lines += [json.loads(line) for line in text.splitlines()]
            found = [one for one in lines if one["event"] == "run_finished"]
            if len(found) >= count:
                return found
            await anyio.lowlevel.checkpoint()


async def test_each_run_is_one_line_with_where_its_time_went(tmp_path: Path) -> None:
    tool = Reply(calls=[("c1", "echo", '{"text": "a"}')], usage=(100, 10))
    async with scripted_server([tool, Reply("done", usage=(200, 20)), Reply(status=401)]) as model:
        setup = Setup(model.url, provider=PRICES, tools=("echo",))
        async with command(await setup.written(tmp_path)) as started:
            told = await post_chat(started.url, "hi", conversation_id="c")
            await post_chat(started.url, "again", conversation_id="d")
            one, other = await finished(tmp_path, 2)
            metrics = (await http(started.url + "/metrics")).body.decode()

    assert " ".join(one) == FIELDS
    assert (one["run"], one["session"]) == (told.json["run_id"], "main:api:local:c")
    assert (one["agent"], one["channel"], one["person"]) == ("main", "api", "local")
    assert (one["reason"], one["iterations"], one["tools"], one["tokens"]) == (
        "answered",
        2,
        1,
        330,
    )
    assert one["cost_usd"] == 0.00036
    parts = [one[f"{part}_ms"] for part in ("queue", "model", "tools", "store")]
    assert all(part > 0 for part in parts)
    assert sum(parts) <= one["total_ms"] + 0.01
    assert (other["reason"], other["tools"], other["tokens"]) == ("provider_error", 0, 0)

    runs = 'exogate_runs_total{agent="main",channel="api",reason='
    of_model = 'provider="fake",model="m"'
    for line in (
        f'{runs}"answered"}} 1',
        f'{runs}"provider_error"}} 1',
        f'{runs}"internal_error"}} 0',
        'exogate_run_duration_seconds_count{agent="main"} 2',
        f'exogate_model_calls_total{{{of_model},outcome="answered"}} 2',
        f'exogate_model_calls_total{{{of_model},outcome="failed"}} 1',
        f'exogate_model_tokens_total{{agent="main",{of_model},kind="input"}} 300',
        f"exogate_model_first_token_seconds_count{{{of_model}}} 1",
        f"exogate_model_call_duration_seconds_count{{{of_model}}} 3",
        'exogate_tool_calls_total{tool="echo",outcome="ok"} 1',
        'exogate_tool_duration_seconds_count{tool="echo"} 1',
        "exogate_queue_wait_seconds_count 2",
        "exogate_connections 0",
        "exogate_log_records_dropped_total 0",
    ):
        assert line in metrics.splitlines()
