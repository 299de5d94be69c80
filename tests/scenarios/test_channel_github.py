"""GitHub calls: it signs the body alone, so the body tells its calls apart and no header does."""

import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest

from tests.fakes.api import ApiCall, Told, serving
from tests.fakes.client import HttpAnswer, connected, http
from tests.fakes.gateway import Setup, Site, running
from tests.fakes.model_server import ModelServer, Reply, scripted_server

pytestmark = pytest.mark.shared_store(only_long=True)

LONG_S = 60.0
SECRET = "a-secret-that-github-was-given"
HEADERS = {"github": "x-hub-signature-256", "hmac": "x-signature-256"}


@dataclass
class Platform:
    """Where answers are posted."""

    url: str = ""
    posted: list[ApiCall] = field(default_factory=list)
    is_posted: anyio.Event = field(default_factory=anyio.Event)

    async def answer(self, call: ApiCall) -> Told:
        self.posted.append(call)
        self.is_posted.set()
        return Told()

    def toml(self, scheme: str) -> str:
        return f"""
[[plugins]]
name = "webhook"
path = "bundled:webhook"
capabilities = ["http:{self.url}"]

[channels.hub]
plugin = "webhook"
config = {{ scheme = "{scheme}", reply_url = "{self.url}/answers" }}
secrets = {{ secret = "{SECRET}", reply_token = "token" }}
dm_policy = "open"
groups."octo/hello" = {{}}
"""


@asynccontextmanager
async def a_platform() -> AsyncIterator[tuple[Platform, ModelServer]]:
    platform = Platform()
    with anyio.fail_after(LONG_S):
        async with (
            serving(platform.answer) as platform.url,
            scripted_server(lambda asked: Reply("Seen.")) as model,
        ):
            yield platform, model


@asynccontextmanager
async def opened(
    platform: Platform, model: ModelServer, folder: Path, scheme: str = "github"
) -> AsyncIterator[Site]:
    async with running(Setup(model.url, rest=platform.toml(scheme)), folder) as site:
        yield site
        await site.rooms.shared.lanes.wait_idle()


def an_issue(title: str, number: int = 1) -> bytes:
    event = {
        "action": "opened",
        "issue": {"number": number, "title": title},
        "repository": {"full_name": "octo/hello"},
        "sender": {"login": "ada"},
    }
    return json.dumps(event).encode()


async def post(site: Site, body: bytes, scheme: str = "github", **unsigned: str) -> HttpAnswer:
    proof = hmac.digest(SECRET.encode(), body, hashlib.sha256).hex()
    headers = {
        "content-type": "application/json",
        "x-github-event": "issues",
        HEADERS[scheme]: f"sha256={proof}",
        **{name.replace("_", "-"): value for name, value in unsigned.items()},
    }
    return await http(f"{site.url}/webhooks/hub", method="POST", headers=headers, body=body)


async def deliver(site: Site, body: bytes, delivery: str, event: str = "issues") -> HttpAnswer:
    return await post(site, body, x_github_delivery=delivery, x_github_event=event)


async def test_a_captured_call_under_another_delivery_id_makes_no_second_turn(
    tmp_path: Path,
) -> None:
    body = an_issue("It leaks")

    async with a_platform() as (platform, model):
        async with opened(platform, model, tmp_path) as site:
            answers = [await deliver(site, body, "first")]
            await site.rooms.shared.lanes.wait_idle()
            answers += [await deliver(site, body, one) for one in ("first", "second")]
            answers.append(await deliver(site, body, "third", "issue_comment"))
        async with opened(platform, model, tmp_path) as site:
            answers.append(await deliver(site, body, "fourth"))

    assert {(one.status, one.body) for one in answers} == {(200, b"")}
    assert len(model.requests) == 1


async def test_copies_that_come_together_under_many_ids_are_one_turn(tmp_path: Path) -> None:
    body = an_issue("It leaks")

    async with (
        a_platform() as (platform, model),
        opened(platform, model, tmp_path) as site,
        anyio.create_task_group() as group,
    ):
        for number in range(10):
            group.start_soon(deliver, site, body, f"id-{number}")

    assert len(model.requests) == 1


async def test_another_signed_body_under_a_known_delivery_id_is_not_lost(tmp_path: Path) -> None:
    async with a_platform() as (platform, model), opened(platform, model, tmp_path) as site:
        await deliver(site, an_issue("It leaks"), "same")
        await model.wait_for(1)
        await site.rooms.shared.lanes.wait_idle()
        await deliver(site, an_issue("It is mended"), "same")
        asked = await model.wait_for(2)

    assert "It is mended" in asked.last_text


async def test_an_answer_still_names_the_delivery_that_it_answers(tmp_path: Path) -> None:
    async with a_platform() as (platform, model), opened(platform, model, tmp_path) as site:
        await deliver(site, an_issue("It leaks"), "72d3162e-cc78")
        await platform.is_posted.wait()

    (call,) = platform.posted
    assert (call.body["reply_to"], call.body["peer"]) == ("72d3162e-cc78", "octo/hello")


async def test_a_dead_letter_that_was_taken_in_is_not_taken_again_under_another_id(
    tmp_path: Path,
) -> None:
    body = an_issue("half \ud83d a sign")

    async with a_platform() as (platform, model), opened(platform, model, tmp_path) as site:
        answers = [await deliver(site, body, one) for one in ("first", "second")]
        async with connected(site.url) as client:
            (letter,) = (await client.call("channel.dead_letters"))["unread"]
            await client.call("channel.resubmit", id=letter["id"])
            await model.wait_for(1)
            answers.append(await deliver(site, body, "third"))
            left = (await client.call("channel.dead_letters"))["unread"]

    assert {one.status for one in answers} == {200}
    assert left == []
    assert len(model.requests) == 1


@pytest.mark.parametrize("named", [{"id": "build-1"}, {}])
async def test_no_header_makes_a_second_message_of_a_call_of_a_program(
    tmp_path: Path, named: dict[str, str]
) -> None:
    body = json.dumps({"sender": "build", "text": "It failed."} | named).encode()

    async with (
        a_platform() as (platform, model),
        opened(platform, model, tmp_path, "hmac") as site,
    ):
        for number in range(3):
            ids = {"webhook_id": f"id-{number}", "x_github_delivery": f"id-{number}"}
            assert (await post(site, body, "hmac", **ids)).status == 200

    assert len(model.requests) == 1
