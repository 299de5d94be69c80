"""Wrong tokens over real sockets: guesses are delayed, and valid tokens still work."""

from dataclasses import replace

import anyio
import pytest
from websockets.exceptions import InvalidStatus

from tests.web.running import ALICE, BEARER, GUARDED, Site, ask, closed_with, request, running

WRONG = {"Authorization": "Bearer wrong"}
HELD_S = 600.0  # longer than any test: what is late does not come
SLOW = replace(GUARDED, auth_delay_s=HELD_S)
QUICK = replace(GUARDED, auth_delay_s=0.05)
LATE_S = 0.045  # clocks are not that exact


async def guess(site: Site, times: int = 10) -> list[int]:
    return [(await site.get("/whoami", WRONG)).status for _ in range(times)]


async def test_after_ten_wrong_tokens_each_further_one_is_answered_429_and_late() -> None:
    async with running(QUICK) as site:
        first = await guess(site)
        begun = anyio.current_time()
        late = await site.get("/whoami", WRONG)
        took_s = anyio.current_time() - begun

    assert first == [401] * 10
    assert (late.status, late.json["error"]["code"]) == (429, "too_many_failures")
    assert int(late.headers["retry-after"]) > 0
    assert took_s >= LATE_S


async def test_a_valid_token_is_let_in_while_guesses_of_its_address_wait() -> None:
    async with running(SLOW) as site:
        await guess(site)
        async with anyio.create_task_group() as group:
            for _ in range(4):
                group.start_soon(site.get, "/whoami", WRONG)
            await anyio.wait_all_tasks_blocked()
            named = [(await site.get("/whoami", BEARER)).json for _ in range(20)]
            async with site.socket(BEARER) as by_header:
                assert (await ask(by_header, "ping"))["result"] == "pong"
            async with site.socket() as by_frame:
                assert (await ask(by_frame, "auth", token=ALICE.secret))["result"]
            group.cancel_scope.cancel()

    assert named == [{"name": "alice"}] * 20


async def test_only_few_guesses_of_an_address_wait_and_the_others_lose_their_connection() -> None:
    async with running(SLOW) as site:
        await guess(site)
        async with anyio.create_task_group() as group:
            for _ in range(4):
                group.start_soon(site.get, "/whoami", WRONG)
            await anyio.wait_all_tasks_blocked()
            twice = (
                f"GET /whoami HTTP/1.1\r\nHost: {site.address}\r\n"
                "Authorization: Bearer wrong\r\n\r\n"
            ).encode() * 2
            answers = [await site.raw(twice) for _ in range(20)]
            group.cancel_scope.cancel()

    assert [answer.count(b"HTTP/1.1 429") for answer in answers] == [1] * 20


async def test_a_guess_in_a_frame_is_told_late_and_what_follows_it_is_not_read() -> None:
    async with running(QUICK) as site:
        await guess(site)
        async with site.socket() as socket:
            begun = anyio.current_time()
            await socket.send(request("auth", token="wrong"))
            await socket.send(request("auth", 2, token=ALICE.secret))
            answer = await socket.recv()
            took_s = anyio.current_time() - begun
            assert await closed_with(socket) == 4429

    assert "too_many_failures" in str(answer)
    assert took_s >= LATE_S


async def test_a_guess_in_a_handshake_is_refused_late() -> None:
    async with running(QUICK) as site:
        await guess(site)
        begun = anyio.current_time()
        with pytest.raises(InvalidStatus) as refused:
            async with site.socket(WRONG):
                raise AssertionError("a wrong token opened a socket")
        took_s = anyio.current_time() - begun

    assert refused.value.response.status_code == 429
    assert took_s >= LATE_S


@pytest.mark.parametrize(
    ("of", "is_slowed"),
    [
        ("192.0.2.7:{n}", True),
        ("192.0.2.7", True),
        ("[::ffff:192.0.2.7]:{n}", True),
        ("192.0.2.{n}", False),
        ("[2001:db8::{n}]:443", True),
        ("2001:db8:0:{n}::1", False),
        ("unknown-{n}", True),
    ],
)
async def test_behind_a_proxy_guesses_are_counted_by_the_address_that_it_names(
    of: str, is_slowed: bool
) -> None:
    async with running(replace(QUICK, trusted_proxies=("127.0.0.1",))) as site:
        statuses = []
        for number in range(1, 12):
            hops = {"X-Forwarded-For": "198.51.100.1, " + of.format(n=number)}
            statuses.append((await site.get("/whoami", {**WRONG, **hops})).status)

    assert statuses == [401] * 10 + [429 if is_slowed else 401]
