"""GET /metrics: the text format of Prometheus, and the scope that it needs."""

import re
from pathlib import Path

import pytest

from gateway.domain.channels import ChannelStatus, FlowProgress
from gateway.domain.inbox import NewDelivery, ReceivedMessage
from gateway.web.metrics import ChannelFigures
from tests.fakes.client import http, post_chat
from tests.fakes.gateway import Setup, running
from tests.fakes.model_server import Reply, scripted_server
from tests.fakes.store import NOON, open_memory

TOKENS = """
[[tokens]]
name = "scraper"
token = "scraper-0123456789"
scopes = ["metrics"]
[[tokens]]
name = "guest"
token = "guest-0123456789"
scopes = ["chat"]
"""
LINE = re.compile(r'(exogate_\w+)(?:\{(\w+="(?:[^"\\]|\\.)*",?)+\})? -?[0-9.e+-]+')


def samples(text: str) -> dict[str, float]:
    pairs = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


async def test_what_was_spent_and_refused_is_counted(tmp_path: Path) -> None:
    prices = "prices = { m = { input = 1, output = 2 } }"
    async with scripted_server([Reply("hi", usage=(700, 50))]) as model:
        setup = Setup(model.url, provider=prices, rest="[budgets]\nsession = 900\n")
        async with running(setup, tmp_path) as site:
            await post_chat(site.url, "hi", conversation_id="c")
            await post_chat(site.url, "again", conversation_id="c")
            answer = await http(site.url + "/metrics")

    text = answer.body.decode()
    found = samples(text)
    of_model = 'provider="fake",model="m"'
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    of_agent = f'agent="main",{of_model}'
    assert found[f'exogate_model_calls_total{{{of_model},outcome="answered"}}'] == 1
    assert found[f'exogate_model_tokens_total{{{of_agent},kind="input"}}'] == 700
    assert found[f"exogate_model_cost_usd_total{{{of_agent}}}"] == pytest.approx(0.0008)
    assert found['exogate_budget_used{scope="daily",unit="tokens"}'] == 750
    assert found['exogate_budget_refusals_total{scope="session"}'] == 1
    assert (found["exogate_ready"], found["exogate_sessions"]) == (1, 1)
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert all(LINE.fullmatch(line) for line in lines)


async def test_channels_tell_what_comes_in_and_whether_each_direction_works() -> None:
    failing = FlowProgress(failing_since=NOON, why="no")
    statuses = (
        ChannelStatus("a", "p", "bot", None, "failing", sending=failing, refused={"wrong": 2}),
        ChannelStatus("b", "p", "bot", None, "refused", "no secret"),
    )
    taken, ignored = {("a", "accepted"): 3}, {("a", "bot"): 1, ("a", "wrong"): 1}
    async with open_memory() as stores:
        figures = ChannelFigures(lambda: statuses, stores.outbox, taken, ignored, {})

    assert samples("".join(figures.traffic())) == {
        'exogate_channel_up{channel="a",direction="in"}': 1,
        'exogate_channel_up{channel="a",direction="out"}': 0,
        'exogate_channel_up{channel="b",direction="in"}': 0,
        'exogate_channel_up{channel="b",direction="out"}': 0,
        'exogate_channel_messages_total{channel="a",outcome="accepted"}': 3,
        'exogate_channel_refused_total{channel="a",why="bot"}': 1,
        'exogate_channel_refused_total{channel="a",why="wrong"}': 3,
    }


async def test_deliveries_are_counted_by_channel() -> None:
    async with open_memory() as stores:
        for name, state in {"a": "failed", "b": "unknown", "c": "sent", "d": "pending"}.items():
            new = NewDelivery(name, "chat", "bot", "p", None, "hi")
            await stores.channels.record(ReceivedMessage("chat", "bot", name, "told", NOON), [new])
            await stores.outbox.settle(name, state, at=NOON)  # type: ignore[arg-type]  # a table
        delivered = {("chat", "sent"): 1}
        figures = ChannelFigures(list, stores.outbox, {}, {}, delivered)

        found = samples("".join(await figures.deliveries()))

    assert found == {
        'exogate_deliveries_total{channel="chat",state="sent"}': 1,
        'exogate_deliveries_waiting{channel="chat"}': 1,
        "exogate_outbox_pending": 1,
        'exogate_dead_letters{channel="chat"}': 2,
    }


async def test_metrics_are_told_to_whom_they_were_granted(tmp_path: Path) -> None:
    async with (
        scripted_server([Reply("hi")]) as model,
        running(Setup(model.url, rest=TOKENS), tmp_path) as site,
    ):
        answers = [
            await http(site.url + "/metrics", token=token)
            for token in ("scraper-0123456789", "guest-0123456789", None)
        ]

    assert [answer.status for answer in answers] == [200, 403, 401]


async def test_metrics_can_be_off(tmp_path: Path) -> None:
    async with (
        scripted_server([Reply("hi")]) as model,
        running(Setup(model.url, rest="[observability]\nmetrics = false"), tmp_path) as site,
    ):
        answer = await http(site.url + "/metrics")

    assert answer.status == 404
