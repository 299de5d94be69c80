"""The web application: guards, authentication and errors."""

from dataclasses import replace

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.domain.errors import Busy, NotFound
from gateway.web.settings import TokenDef
from tests.web.running import ALICE, BEARER, GUARDED, OPEN, Refused, Site, running


@pytest.mark.parametrize("header", ["X-Real-Ip", "X-Forwarded-For", "Forwarded", "Via"])
async def test_what_a_trusted_proxy_passes_on_is_not_the_local_operator_s(header: str) -> None:
    async with running(replace(OPEN, trusted_proxies=("127.0.0.1",))) as site:
        assert (await site.get("/whoami", {header: "127.0.0.1"})).status == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost"}, 200),
        ({"Host": "127.0.0.1"}, 200),
        ({"Host": "evil.com"}, 403),
        ({"Host": "127.0.0.1.evil.com"}, 403),
        ({"Host": "127.evil.com"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://evil.com"}, 403),
        ({"Origin": "http://127.0.0.1.evil.com"}, 403),
        ({"Host": "localhost:7200", "Origin": "http://localhost:7200"}, 401),
        ({"X-Forwarded-For": "127.0.0.1"}, 401),
        ({"Forwarded": "for=127.0.0.1"}, 401),
        ({"X-Real-Ip": "127.0.0.1"}, 401),
        ({"Sec-Fetch-Site": "cross-site"}, 401),
        ({"Sec-Fetch-Site": "none"}, 200),
    ],
)
async def test_without_tokens_only_a_near_program_is_the_local_operator(
    headers: dict[str, str], status: int
) -> None:
    async with running(OPEN) as site:
        answer = await site.get("/whoami", headers)

        assert answer.status == status
        if status == 200:
            assert answer.json == {"name": "local"}
        if status == 403:
            assert answer.json["error"]["type"] == "forbidden"


async def test_a_token_names_its_principal_whatever_else_it_says() -> None:
    async with running(GUARDED) as site:
        for extra in ({}, {"X-Scopes": "admin"}, {"X-Forwarded-For": "1.2.3.4"}):
            answer = await site.get("/whoami", {**BEARER, **extra})
            assert answer.json == {"name": "alice"}


@pytest.mark.parametrize(
    "path", ["/whoami", "/nothing", "/", "/ws", "/healthz/", "//healthz", "/readyz/"]
)
@pytest.mark.parametrize(
    "headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic YTpi"}]
)
async def test_without_a_credential_every_address_says_the_same(
    path: str, headers: dict[str, str]
) -> None:
    async with running(GUARDED) as site:
        answer = await site.get(path, headers)
        other = await site.get("/nothing/else", {"Authorization": "Bearer other"})

        assert answer.status == other.status == 401
        assert answer.body == other.body
        assert answer.headers["www-authenticate"] == "bearer"


async def test_a_token_in_the_address_is_no_token() -> None:
    async with running(GUARDED) as site:
        for name in ("token", "access_token", "auth"):
            assert (await site.get(f"/whoami?{name}={ALICE.secret}")).status == 401


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_health_and_readiness_need_no_credential(method: str) -> None:
    async with running(GUARDED) as site:
        alive = await site.get("/healthz", method=method)
        ready = await site.get("/readyz", method=method)

    assert (alive.status, ready.status) == (200, 200)
    if method == "GET":
        assert (alive.json, ready.json) == ({"status": "ok"}, {"status": "ready"})


async def test_why_it_is_not_ready_is_told_to_those_who_may_read() -> None:
    reader = TokenDef("reader", "reader-secret-token", frozenset({"read"}))
    settings = replace(GUARDED, tokens=(ALICE, reader))
    async with running(settings, reasons=("the store cannot commit",)) as site:
        by_nobody = await site.get("/readyz")
        by_chat = await site.get("/readyz", BEARER)
        by_reader = await site.get("/readyz", {"Authorization": f"Bearer {reader.secret}"})
        by_guess = await site.get("/readyz", {"Authorization": "Bearer wrong"})

    assert [one.status for one in (by_nobody, by_chat, by_reader, by_guess)] == [503, 503, 503, 401]
    assert by_nobody.json == by_chat.json == {"status": "not_ready"}
    assert by_reader.json == {"status": "not_ready", "reasons": ["the store cannot commit"]}
    assert by_nobody.headers["retry-after"]


async def test_what_is_not_there_is_not_found() -> None:
    async with running() as site:
        missing = await site.get("/nothing")

        assert (missing.status, missing.json["error"]["type"]) == (404, "not_found")


@pytest.mark.parametrize("path", ["/whoami", "/healthz", "/readyz"])
async def test_an_address_says_which_methods_it_knows(path: str) -> None:
    async with running() as site:
        wrong = await site.get(path, method="DELETE")

    assert (wrong.status, wrong.json["error"]["code"]) == (405, "method_not_allowed")
    assert sorted(wrong.headers["allow"].split(", ")) == ["get", "head"]


async def test_a_failure_inside_is_told_without_its_inside() -> None:
    async with running() as site:
        answer = await site.get("/broken")

        assert (answer.status, answer.json["error"]["type"]) == (500, "internal_error")
        assert b"secret" not in answer.body
        assert (await site.get("/healthz")).status == 200


@pytest.mark.parametrize(("error", "status"), [(NotFound("session"), 404), (Busy("full", 3), 503)])
async def test_what_a_route_raises_is_answered_in_one_shape(error: Exception, status: int) -> None:
    async def route(_request: Request) -> Response:
        raise error

    async with running(routes=(Route("/x", route),)) as site:
        answer = await site.get("/x")

        assert answer.status == status
        assert set(answer.json["error"]) >= {"type", "code", "message", "retryable"}
        assert ("retry-after" in answer.headers) is (status == 503)


@pytest.mark.parametrize("error", [Refused("inside"), RuntimeError("inside")])
async def test_what_nobody_outside_may_read_is_in_the_log(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async def route(_request: Request) -> Response:
        raise error

    async with running(routes=(Route("/x", route),)) as site:
        answer = await site.get("/x")

    assert answer.status == 500
    assert b"inside" not in answer.body
    assert len([record for record in caplog.records if record.exc_info]) == 1


@pytest.mark.parametrize("path", ["/healthz", "/whoami", "/nothing", "/broken"])
async def test_every_answer_tells_a_browser_to_be_careful(path: str) -> None:
    async with running() as site:
        answer = await site.get(path)
        refused = await _refused(site)

        for headers in (answer.headers, refused):
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["x-frame-options"] == "deny"
            assert headers["cache-control"] == "no-store"
        assert "server" not in answer.headers


async def _refused(site: Site) -> dict[str, str]:
    return (await site.get("/whoami", {"Host": "evil.com"})).headers
