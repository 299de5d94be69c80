"""Hints between nodes over a real NATS server, and without one."""

import contextlib
import json
import logging
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from anyio import to_thread

pytest.importorskip("nats", reason="the extra `cluster` is not installed")

from gateway.cluster.hints import LARGEST_HINT, MOST_WAITING, HintSettings, NatsHints, parse_hint
from gateway.domain.cluster import (
    FREE,
    Hint,
    NoHints,
    events_subject,
    node_subject,
    work_subject,
)
from gateway.domain.ids import Secret
from gateway.host.clock import SystemClock
from tests.fakes.certificate import certificate_for
from tests.fakes.nats import NatsServer, nats_binary, running_nats

QUICK = HintSettings(connect_s=2.0, ping_every_s=0.2, retry_s=0.05, longest_retry_s=0.2)


@pytest.fixture(scope="module")
def nats_server() -> Iterator[NatsServer]:
    with running_nats(nats_binary()) as server:
        yield server


@pytest.fixture
def own_nats_server() -> Iterator[NatsServer]:
    with running_nats(nats_binary()) as server:
        yield server


def hints_at(url: str, cluster: str = "tests", credentials: str = "") -> NatsHints:
    return NatsHints(url, cluster, Secret(credentials), SystemClock(), QUICK)


async def until(is_so: Callable[[], bool]) -> None:
    with anyio.fail_after(60):
        while not is_so():  # noqa: ASYNC110  # another process is waited for
            await anyio.sleep(0.01)


@contextlib.asynccontextmanager
async def running(*nodes: NatsHints, connected: bool = True) -> AsyncIterator[None]:
    async with anyio.create_task_group() as group:
        for node in nodes:
            group.start_soon(node.run)
        if connected:
            await until(lambda: not any(node.degraded for node in nodes))
        yield
        group.cancel_scope.cancel()


async def heard(by: NatsHints, at: NatsHints, subject: str = FREE) -> None:
    """Returns when a hint arrives; the first ones may come before the subscription does."""
    came: list[Hint] = []
    with by.listen(subject, came.append), anyio.fail_after(60):
        while not came:
            at.publish(subject, {"node": "x"})
            await anyio.sleep(0.02)


async def test_a_hint_reaches_the_other_nodes_of_the_cluster(nats_server: NatsServer) -> None:
    a, b, other = (hints_at(nats_server.url, name) for name in ("one", "one", "two"))
    at_a: list[Hint] = []
    at_b: list[Hint] = []
    elsewhere: list[Hint] = []
    async with running(a, b, other):
        with (
            a.listen(FREE, at_a.append),
            b.listen(FREE, at_b.append),
            other.listen(FREE, elsewhere.append),
        ):
            await heard(b, a, "ready")
            assert a.publish(FREE, {"node": "ö\ud800", "seq": 1})
            await until(lambda: bool(at_b))
            await heard(b, a, "ready")

    assert at_b == [{"node": "ö\ud800", "seq": 1, "v": 1}]
    assert at_a == []
    assert elsewhere == []


async def test_who_listens_no_more_gets_nothing(nats_server: NatsServer) -> None:
    a, b = hints_at(nats_server.url), hints_at(nats_server.url)
    first: list[Hint] = []
    second: list[Hint] = []
    async with running(a, b):
        with b.listen("x", second.append):
            with b.listen("x", first.append):
                await until(lambda: a.publish("x", {}) and bool(first))
            count = len(first)
            await heard(b, a, "x")
        await heard(b, a, "y")
        before = len(second)
        a.publish("x", {})
        await heard(b, a, "y")

    assert len(first) == count
    assert len(second) == before


async def test_without_a_server_hints_are_dropped_and_come_back_with_it(
    own_nats_server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await to_thread.run_sync(own_nats_server.stop)
    a, b = hints_at(own_nats_server.url), hints_at(own_nats_server.url)
    came: list[Hint] = []
    async with running(a, b, connected=False):
        with b.listen(FREE, came.append):
            await anyio.sleep(0.3)
            degraded = a.degraded
            assert not a.publish(FREE, {"old": True})
            for _ in range(2):
                await to_thread.run_sync(own_nats_server.start)
                await until(lambda: not a.degraded and not b.degraded)
                await heard(b, a)
                await to_thread.run_sync(own_nats_server.kill)
                await until(lambda: bool(a.degraded and b.degraded))
                assert not a.publish(FREE, {"old": True})

    assert degraded == ("nats",)
    assert came
    assert not [one for one in came if "old" in one]
    assert a.counts["dropped"] == 3
    of_a = [record.msg for record in caplog.records if record.name == "gateway.cluster.hints"]
    assert of_a.count("nats_disconnected") == 6  # said once for each of two nodes and three outages
    assert not [record for record in caplog.records if record.name.startswith("nats")]


async def test_a_silent_server_is_found_out(own_nats_server: NatsServer) -> None:
    a = hints_at(own_nats_server.url)
    async with running(a):
        own_nats_server.pause()
        await until(lambda: bool(a.degraded))
        own_nats_server.resume()
        await until(lambda: not a.degraded)


async def test_a_silent_server_does_not_hold_up_the_end(own_nats_server: NatsServer) -> None:
    a = hints_at(own_nats_server.url)
    with anyio.fail_after(60):
        async with running(a):
            own_nats_server.pause()
            for _ in range(30):
                a.publish(FREE, {"text": "x" * 100_000})
            await anyio.sleep(0.05)


SEED = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"
CONFIGURATIONS = {
    "token": ('authorization { token: "t0ken" }', "t0ken"),
    "user": ('authorization { user: "u", password: "p:w" }', "u:p:w"),
    "nkey": (
        "authorization { users: [ { nkey: "
        "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4 } ] }",
        SEED,
    ),
}


@pytest.fixture(params=list(CONFIGURATIONS.values()), ids=list(CONFIGURATIONS))
def locked_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Its address, and the credentials that it wants."""
    binary = nats_binary()
    configuration, credentials = request.param
    if credentials == SEED:
        pytest.importorskip("nkeys", reason="nkeys, of the extra `cluster`, is not installed")
    (tmp_path / "nats.conf").write_text(configuration)
    with running_nats(binary, "-c", str(tmp_path / "nats.conf")) as server:
        yield server.url, credentials


async def test_credentials_are_needed_where_the_server_wants_some(
    locked_server: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    url, credentials = locked_server
    good, wrong = hints_at(url, credentials=credentials), hints_at(url, credentials="wr0ng:wr0ng")
    async with running(good):
        pass
    async with running(wrong, connected=False):
        await until(lambda: "nats_disconnected" in [record.msg for record in caplog.records])
        assert wrong.degraded == ("nats",)

    why = str(caplog.records[-1].__dict__["why"])
    assert "uthorization" in why or "reset by peer" in why  # the server may close before it is read
    assert "wr0ng" not in str([record.__dict__ for record in caplog.records])


@pytest.fixture
def tls_server(tmp_path: Path) -> Iterator[tuple[str, ssl.SSLContext]]:
    """Its address, and what a client has to trust."""
    binary = nats_binary()
    file, trusted = certificate_for("127.0.0.1", tmp_path)
    options = ("--tls", "--tlscert", str(file), "--tlskey", str(file))
    with running_nats(binary, *options) as server:
        yield server.url.replace("nats:", "tls:"), trusted


async def test_a_server_is_known_by_its_certificate(
    tls_server: tuple[str, ssl.SSLContext], caplog: pytest.LogCaptureFixture
) -> None:
    url, trusted = tls_server
    good, wrong = hints_at(url), hints_at(url)
    good.settings = replace(QUICK, tls=trusted)
    async with running(good):
        pass
    async with running(wrong, connected=False):
        await until(lambda: "nats_disconnected" in [record.msg for record in caplog.records])

    assert "CERTIFICATE_VERIFY_FAILED" in str(caplog.records[-1].__dict__["why"])


async def test_what_is_too_large_or_too_much_is_dropped(nats_server: NatsServer) -> None:
    a, b = hints_at(nats_server.url), hints_at(nats_server.url)
    half = {"text": "x" * (LARGEST_HINT // 2)}
    async with running(a, b):
        assert not a.publish(FREE, {"text": "x" * LARGEST_HINT})
        sent = [a.publish(FREE, half) for _ in range(3 * MOST_WAITING // LARGEST_HINT)]
        await heard(b, a)

    assert sent.count(True) == 2 * MOST_WAITING // LARGEST_HINT - 1
    assert a.counts["dropped"] == 1 + sent.count(False)


async def test_a_listener_that_fails_disturbs_no_other_hint(
    nats_server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = hints_at(nats_server.url), hints_at(nats_server.url)
    calls: list[Hint] = []

    def fail(hint: Hint) -> None:
        calls.append(hint)
        raise KeyError("a defect")

    async with running(a, b):
        with b.listen("x", fail):
            await until(lambda: a.publish("x", {}) and len(calls) > 1)
        await heard(b, a)

    assert "nats_listener_failed" in [record.msg for record in caplog.records]


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"no JSON",
        b"[]",
        b'"text"',
        b"{}",
        b'{"v": 2}',
        b'{"v": "1"}',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"v": 1, "n": ' + b"9" * 10_000 + b"}",
        json.dumps({"v": 1, "text": "x" * LARGEST_HINT}).encode(),
    ],
    ids=lambda payload: repr(payload[:12]),
)
def test_what_anybody_may_have_published_is_no_hint(payload: bytes) -> None:
    assert parse_hint(payload) is None


def test_subjects_hold_no_names_of_others() -> None:
    hostile = "x..y *.> \r\n ö"

    subjects = [work_subject(7), node_subject(hostile), events_subject(hostile)]

    assert subjects[0] == "part.7"
    assert all(subject.replace(".", "", 1).isalnum() for subject in subjects)
    assert len({subject.partition(".")[2] for subject in subjects[1:]}) == 1
    assert node_subject("a") != node_subject("b")


async def test_without_nats_nothing_is_degraded() -> None:
    hints = NoHints()

    with hints.listen(FREE, print):
        assert not hints.publish(FREE, {})
    assert list(hints.degraded) == []
