"""/webhooks need no token, Host or Origin; every other guard applies."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import pytest

from gateway.domain.channels import WebhookAnswer, WebhookCall
from gateway.web.webhooks import MOST_BYTES_AT_ONCE, SMALL, WebhookRoutes
from tests.web.running import GUARDED, Answer, Site, running

LARGEST = 1_000


@dataclass
class FakeWebhooks:
    """Implements Webhooks for the one channel `family`."""

    answer: WebhookAnswer = WebhookAnswer()
    calls: list[WebhookCall] = field(default_factory=list)
    largest: int = LARGEST

    def largest_body(self, channel: str) -> int | None:
        return self.largest if channel == "family" else None

    async def receive(self, call: WebhookCall) -> WebhookAnswer:
        self.calls.append(call)
        return self.answer


@asynccontextmanager
async def opened(webhooks: FakeWebhooks) -> AsyncIterator[Site]:
    async with running(GUARDED) as site:
        site.app.open_webhooks(webhooks)
        yield site


async def post(site: Site, path: str = "/webhooks/family", body: bytes = b"{}") -> Answer:
    return await site.get(path, method="POST", body=body)


async def test_a_call_is_handed_on_as_it_was_sent() -> None:
    webhooks = FakeWebhooks()
    headers = {"X-Sign": " a b ", "Host": "evil.example", "Origin": "https://evil.example"}

    async with opened(webhooks) as site:
        path = "/webhooks/family/a%2Fb/../c?x=%41&y"
        answer = await site.get(path, headers, method="PUT", body=b"\xff\0")

    (call,) = webhooks.calls
    assert answer.status == 200
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert (call.channel, call.method, call.path) == ("family", "PUT", "/a%2Fb/../c")
    assert (call.query, call.body) == ("x=%41&y", b"\xff\0")
    assert ("x-sign", "a b") in call.headers


async def test_a_method_that_no_platform_uses_is_refused_with_those_that_some_do() -> None:
    webhooks = FakeWebhooks()
    async with opened(webhooks) as site:
        answer = await site.get("/webhooks/family", method="DELETE")

    assert (answer.status, answer.headers["allow"], webhooks.calls) == (405, "get, post, put", [])


async def test_repeated_headers_are_kept_apart() -> None:
    webhooks = FakeWebhooks()

    async with opened(webhooks) as site:
        head = b"POST /webhooks/family HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        await site.raw(head + b"X-Sign: a\r\nx-sign: b\r\nContent-Length: 0\r\n\r\n")

    given = [value for name, value in webhooks.calls[0].headers if name == "x-sign"]
    assert given == ["a", "b"]


@pytest.mark.parametrize(
    "path", ["/webhooks", "/webhook/family", "/Webhooks/family", "/%77ebhooks/family", "/whoami"]
)
async def test_every_other_address_needs_a_credential(path: str) -> None:
    webhooks = FakeWebhooks()

    async with opened(webhooks) as site:
        assert (await post(site, path)).status == 401

    assert webhooks.calls == []


@pytest.mark.parametrize("path", ["/webhooks/", "/webhooks/nobody", "/webhooks//family"])
async def test_what_is_not_there_is_not_handed_on(path: str) -> None:
    webhooks = FakeWebhooks()

    async with opened(webhooks) as site:
        answer = await post(site, path)

    assert (answer.status, answer.json["error"]["type"]) == (404, "not_found")
    assert webhooks.calls == []


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, "unauthorized"),
        (403, "forbidden"),
        (404, "not_found"),
        (413, "too_large"),
        (500, "internal_error"),
        (503, "busy"),
    ],
)
async def test_a_refusal_reads_as_anywhere_else(status: int, kind: str) -> None:
    webhooks = FakeWebhooks(WebhookAnswer(status, (("retry-after", "7"),)))

    async with opened(webhooks) as site:
        answer = await post(site)

    assert (answer.status, answer.json["error"]["type"]) == (status, kind)
    if status == 503:
        assert answer.headers["retry-after"] == "7"


async def test_what_an_adapter_answers_is_passed_on() -> None:
    plain = (("content-type", "text/plain"),)

    async with opened(FakeWebhooks(WebhookAnswer(403, plain, b"no"))) as site:
        answer = await post(site)

    assert (answer.status, answer.headers["content-type"], answer.body) == (
        403,
        "text/plain",
        b"no",
    )


async def test_a_body_that_says_it_is_too_large_is_not_read() -> None:
    webhooks = FakeWebhooks()

    async with opened(webhooks) as site:
        head = b"POST /webhooks/family HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\n\r\n"
        async with await site.dial() as stream:
            await stream.send(head)
            with anyio.fail_after(60):
                answer = await stream.receive()
        whole = await post(site, body=b"x" * LARGEST)

    assert b" 413 " in answer
    assert whole.status == 200
    assert [len(call.body) for call in webhooks.calls] == [LARGEST]


async def test_a_body_that_turns_out_to_be_too_large_is_cut_off() -> None:
    webhooks = FakeWebhooks()

    async with opened(webhooks) as site:
        head = b"POST /webhooks/family HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        head += b"Transfer-Encoding: chunked\r\n\r\n"
        answer = await site.raw(head + b"3ff\r\n" + b"x" * 0x3FF + b"\r\n0\r\n\r\n")

    assert b" 413 " in answer
    assert webhooks.calls == []


async def test_bodies_of_strangers_hold_only_so_much_memory() -> None:
    webhooks = FakeWebhooks(largest=2 * SMALL)
    routes = WebhookRoutes(webhooks, 2 * SMALL, MOST_BYTES_AT_ONCE - SMALL)

    async with opened(webhooks) as site:
        site.app._webhooks = routes
        refused = await post(site, body=b"x" * (SMALL + 1))
        taken = await post(site, body=b"x" * SMALL)
        routes._held = MOST_BYTES_AT_ONCE
        taken_still = await post(site, body=b"x" * SMALL)

    assert (refused.status, refused.json["error"]["retryable"]) == (503, True)
    assert taken.status == taken_still.status == 200
    assert routes._held == MOST_BYTES_AT_ONCE
