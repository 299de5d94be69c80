"""The connection to a SurrealDB server: on a real one, and on one that answers whatever a test says."""

import contextlib
import logging
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any
from uuid import UUID

import anyio
import pytest
from anyio import to_thread
from websockets.asyncio.server import ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

cbor2 = pytest.importorskip("cbor2", reason="the extra `surrealdb` is not installed")

from gateway.domain.errors import StoreRefused, StoreUnavailable  # noqa: E402
from gateway.domain.ids import EPOCH, Secret  # noqa: E402
from gateway.store.faults import TextRefused  # noqa: E402
from gateway.store.surreal_connection import (  # noqa: E402
    DEEPEST,
    ConnectionSettings,
    Credentials,
    OutcomeUnknown,
    RecordExists,
    RecordID,
    StatementFailed,
    StatementRefused,
    SurrealConnection,
    TransactionConflict,
    decode,
    encode,
)
from tests.fakes.certificate import certificate_for  # noqa: E402
from tests.fakes.surreal import (  # noqa: E402
    PASSWORD,
    PATIENT,
    ROOT,
    USER,
    SurrealDatabase,
    SurrealServer,
)

# A server on a busy machine may take its time for an answer; only what was made to be silent is.
QUICK = replace(PATIENT, retry_s=0.02, longest_retry_s=0.2)
WARY = replace(QUICK, ping_every_s=0.1, silent_s=0.3)


@contextlib.asynccontextmanager
async def connected(
    place: SurrealDatabase,
    credentials: Credentials = ROOT,
    settings: ConnectionSettings = QUICK,
) -> AsyncIterator[SurrealConnection]:
    where = (place.url, place.namespace, place.database)
    connection = await SurrealConnection(*where, credentials, settings).open()
    async with anyio.create_task_group() as group:
        group.start_soon(connection.run)
        yield connection
        group.cancel_scope.cancel()


async def until(is_so: Callable[[], bool]) -> None:
    with anyio.fail_after(60):
        while not is_so():  # noqa: ASYNC110  # another process is waited for
            await anyio.sleep(0.01)


# A real server.


async def test_values_come_back_as_they_were_sent(surreal_database: SurrealDatabase) -> None:
    values: dict[str, object] = {
        "text": "with a NUL \0, an umlaut ö and 😀",
        "bytes": b"\x00\xff",
        "numbers": [2**63 - 1, -(2**63), 0, 1.5, True],
        "nothing": None,
        "uuid": UUID("0196f1f0-0000-7000-8000-000000000000"),
        "records": [RecordID("t", 1), RecordID("t", "a:b c"), RecordID("t", ("x", 2))],
    }

    async with connected(surreal_database) as connection:
        assert await connection.query("RETURN $values", {"values": values}) == [values]


async def test_the_server_reads_spans_and_its_times_are_read(
    surreal_database: SurrealDatabase,
) -> None:
    spans = {"half": timedelta(microseconds=500_000), "days": timedelta(days=2, seconds=3)}

    async with connected(surreal_database) as connection:
        found = await connection.query("RETURN [time::epoch - $half, time::epoch + $days]", spans)

    assert found == [[EPOCH - spans["half"], EPOCH + spans["days"]]]


async def test_nothing_is_no_value_of_an_optional_field(surreal_database: SurrealDatabase) -> None:
    define = "DEFINE TABLE t SCHEMAFULL; DEFINE FIELD open ON t TYPE option<int>"

    async with connected(surreal_database) as connection:
        await connection.query(define)
        made = await connection.query("CREATE t:1 SET open = $open", {"open": None})

    assert made == [[{"id": RecordID("t", 1)}]]


def nested(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ({1, 2}, TypeError),
        (frozenset(), TypeError),
        (object(), TypeError),
        ({1: 2}, TypeError),
        (RecordID("t", None), TypeError),
        (2**63, ValueError),
        (-(2**63) - 1, ValueError),
        (nested(DEEPEST), ValueError),
        ("half a \ud83d pair", TextRefused),
        ({"half a \ud83d pair": 1}, TextRefused),
        ("x" * (64 << 20), ValueError),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, type) else value.__name__,
)
async def test_a_value_that_the_server_could_not_decode_is_not_sent(
    surreal_database: SurrealDatabase, value: object, error: type[Exception]
) -> None:
    async with connected(surreal_database) as connection:
        with pytest.raises(error):
            await connection.query("RETURN $value", {"value": value})

        assert await connection.query("RETURN 1") == [1]


async def test_the_deepest_value_that_is_sent_is_answered(
    surreal_database: SurrealDatabase,
) -> None:
    deepest = nested(DEEPEST - 2)  # the request and its parameters are two levels

    async with connected(surreal_database) as connection:
        assert await connection.query("RETURN $value", {"value": deepest}) == [deepest]


async def test_calls_do_not_wait_for_each_other(surreal_database: SurrealDatabase) -> None:
    ended: list[str] = []

    async with connected(surreal_database) as connection, anyio.create_task_group() as group:

        async def call(text: str) -> None:
            await connection.query(text)
            ended.append(text)

        group.start_soon(call, "SLEEP 300ms")
        await anyio.sleep(0.05)
        group.start_soon(call, "RETURN 1")

    assert ended == ["RETURN 1", "SLEEP 300ms"]


async def test_every_statement_is_looked_at(surreal_database: SurrealDatabase) -> None:
    async with connected(surreal_database) as connection:
        assert await connection.query("RETURN 1; RETURN 2") == [1, 2]
        with pytest.raises(StatementRefused, match="fenced") as refused:
            await connection.query("RETURN 1; THROW 'exogate:fenced'; RETURN 2")

    assert refused.value.reason == "fenced"


async def test_the_cause_of_a_failed_transaction_is_told(surreal_database: SurrealDatabase) -> None:
    text = "BEGIN; CREATE t:1; THROW 'exogate:budget'; CREATE t:2; COMMIT"

    async with connected(surreal_database) as connection:
        await connection.query("DEFINE TABLE t")
        with pytest.raises(StatementRefused) as refused:
            await connection.query(text)
        left = await connection.query("SELECT * FROM t")

    assert refused.value.reason == "budget"
    assert left == [[]]


async def test_an_id_is_taken_once(surreal_database: SurrealDatabase) -> None:
    async with connected(surreal_database) as connection:
        await connection.query("DEFINE TABLE t; CREATE t:1")
        with pytest.raises(RecordExists):
            await connection.query("CREATE t:1")


async def test_an_error_does_not_repeat_the_value(surreal_database: SurrealDatabase) -> None:
    async with connected(surreal_database) as connection:
        await connection.query("DEFINE TABLE t SCHEMAFULL; DEFINE FIELD n ON t TYPE int")
        with pytest.raises(StatementFailed) as failed:
            await connection.query("CREATE t:1 SET n = $n", {"n": "what a person said"})
        with pytest.raises(StatementFailed, match="Parse error"):
            await connection.query("this is no statement")

    assert "Expected `int`" in str(failed.value)
    assert "person" not in str(failed.value)


SLOW = "{ UPSERT t:1 SET n += 1; SLEEP 100ms; }"


async def conflicting(call: Callable[[str], Awaitable[object]]) -> list[type[Exception]]:
    """The errors of three commits of one record at a time."""
    errors: list[type[Exception]] = []

    async def commit() -> None:
        try:
            await call(SLOW)
        except TransactionConflict as error:
            errors.append(type(error))

    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(commit)
    return errors


@pytest.mark.parametrize("text", [SLOW, f"BEGIN; {SLOW}; COMMIT"])
async def test_one_of_several_commits_of_a_record_wins(
    surreal_database: SurrealDatabase, text: str
) -> None:
    async with connected(surreal_database) as connection:
        await connection.query("DEFINE TABLE t")
        errors = await conflicting(lambda _: connection.query(text))
        found = await connection.query("RETURN t:1.n")

    assert errors == [TransactionConflict] * 2
    assert found == [1]


async def test_a_commit_is_repeated_until_it_wins(surreal_database: SurrealDatabase) -> None:
    async with connected(surreal_database) as connection:
        await connection.query("DEFINE TABLE t")
        errors = await conflicting(connection.commit)
        found = await connection.query("RETURN t:1.n")

    assert errors == []
    assert found == [3]


async def test_a_commit_gives_up_at_its_deadline(surreal_database: SurrealDatabase) -> None:
    async with connected(surreal_database) as connection, anyio.create_task_group() as group:
        await connection.query("DEFINE TABLE t")

        async def write() -> None:
            while True:
                await connection.query("UPSERT t:1 SET n += 1")
                await anyio.sleep(0.02)

        group.start_soon(write)
        with pytest.raises((TransactionConflict, OutcomeUnknown)):
            await connection.commit(SLOW.replace("100ms", "1s"), deadline_s=1.5)
        group.cancel_scope.cancel()


async def test_credentials_that_are_refused_are_a_sentence_without_the_password(
    surreal_database: SurrealDatabase,
) -> None:
    wrong = Credentials(USER, Secret("a wrong password"))

    with pytest.raises(StoreRefused, match=r"refuses user 'root'.*\[store\]") as refused:
        await SurrealConnection(surreal_database.url, "tests", "main", wrong).open()

    assert "a wrong password" not in str(refused.value)
    assert "a wrong password" not in repr(wrong)


async def test_nobody_is_let_in_without_credentials(surreal_database: SurrealDatabase) -> None:
    with pytest.raises(StoreRefused, match="Anonymous access not allowed"):
        await SurrealConnection(surreal_database.url, "tests", "main", Credentials()).open()


@pytest.mark.parametrize("level", ["NAMESPACE", "DATABASE"])
async def test_a_user_of_the_namespace_or_the_database_suffices(
    surreal_database: SurrealDatabase, level: str
) -> None:
    define = f"DEFINE USER editor ON {level} PASSWORD 'secret' ROLES EDITOR"
    if level == "NAMESPACE":  # all databases of these tests share it
        define = f"DEFINE USER OVERWRITE editor ON {level} PASSWORD 'secret' ROLES EDITOR"
    editor = Credentials("editor", Secret("secret"))

    async with connected(surreal_database) as connection:
        await connection.query(define)
    async with connected(surreal_database, editor) as connection:
        made = await connection.query("DEFINE TABLE IF NOT EXISTS t; CREATE t:1")

    assert made == [None, [{"id": RecordID("t", 1)}]]


async def test_a_user_who_may_only_read_is_a_sentence(surreal_database: SurrealDatabase) -> None:
    """What such a user writes is not written, and the server answers that all is well."""
    place, viewer = surreal_database, Credentials("viewer", Secret("secret"))

    async with connected(place) as connection:
        await connection.query("DEFINE USER viewer ON DATABASE PASSWORD 'secret' ROLES VIEWER")
    with pytest.raises(StoreRefused, match="'viewer'.*role EDITOR"):
        await SurrealConnection(place.url, place.namespace, place.database, viewer).open()


async def test_a_user_who_may_write_no_more_is_noticed_by_the_next_connection(
    surreal_database: SurrealDatabase,
) -> None:
    define = (
        "DEFINE USER OVERWRITE u ON DATABASE PASSWORD 'secret' ROLES {} DURATION FOR SESSION 1s"
    )

    async with connected(surreal_database) as root:
        await root.query("DEFINE TABLE t")
        await root.query(define.format("EDITOR"))
        async with connected(surreal_database, Credentials("u", Secret("secret"))) as connection:
            await connection.query("CREATE t")
            await root.query(define.format("VIEWER"))
            await anyio.sleep(2.1)
            with pytest.raises(StoreUnavailable, match="expired"):
                await connection.query("CREATE t")
            await until(lambda: not connection.is_ready)
            with pytest.raises(StoreRefused, match="role EDITOR"):
                await connection.connected()
            with pytest.raises(StoreUnavailable, match="role EDITOR"):
                await connection.query("CREATE t")


async def test_an_expired_session_is_signed_in_again(surreal_database: SurrealDatabase) -> None:
    define = "DEFINE USER brief ON DATABASE PASSWORD 'secret' ROLES EDITOR DURATION FOR SESSION 1s"

    async with connected(surreal_database) as connection:
        await connection.query(define)
    async with connected(surreal_database, Credentials("brief", Secret("secret"))) as connection:
        await anyio.sleep(2.1)  # the server counts whole seconds
        with pytest.raises(StoreUnavailable, match="expired"):
            await connection.query("RETURN 1")
        await until(lambda: not connection.is_ready)
        await until(lambda: connection.is_ready)

        assert await connection.query("RETURN 1") == [1]


async def test_a_call_that_was_cancelled_disturbs_no_other(
    surreal_database: SurrealDatabase,
) -> None:
    async with connected(surreal_database) as connection:
        with anyio.move_on_after(0.05) as cancelled:
            await connection.query("SLEEP 200ms")
        await connection.query("SLEEP 300ms")  # its answer came meanwhile, to nobody

    assert cancelled.cancelled_caught


async def test_after_the_death_of_the_server_all_goes_on_by_itself(
    own_surreal_server: SurrealServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    errors: list[type[Exception]] = []

    async def wait_long(connection: SurrealConnection) -> None:
        try:
            await connection.query("SLEEP 30s", deadline_s=60)
        except StoreUnavailable as error:
            errors.append(type(error))

    place = SurrealDatabase(own_surreal_server.url, "tests", "main")
    async with connected(place) as connection:
        async with anyio.create_task_group() as group:
            group.start_soon(wait_long, connection)
            await anyio.sleep(0.1)
            with anyio.fail_after(60):
                await to_thread.run_sync(own_surreal_server.kill)
                await until(lambda: not connection.is_ready)
        with pytest.raises(StoreUnavailable, match="127.0.0.1") as refused:
            await connection.query("RETURN 1")
        await to_thread.run_sync(own_surreal_server.start)
        await until(lambda: connection.is_ready)
        found = await connection.query("RETURN 2")

    assert found == [2]
    assert errors == [OutcomeUnknown]
    assert type(refused.value) is StoreUnavailable
    said = [record.msg for record in caplog.records if record.name.startswith("gateway")]
    assert said == ["store_disconnected", "store_connected"]
    assert PASSWORD not in caplog.text
    assert PASSWORD.encode().hex(" ") not in caplog.text


async def test_what_a_paused_server_was_asked_is_unknown_and_may_happen_later(
    own_surreal_server: SurrealServer,
) -> None:
    place = SurrealDatabase(own_surreal_server.url, "tests", "main")
    async with connected(place, settings=WARY) as connection:
        await connection.query("DEFINE TABLE t")
        own_surreal_server.pause()
        with pytest.raises(OutcomeUnknown):
            await connection.query("CREATE t:1", deadline_s=0.1)
        await until(lambda: not connection.is_ready)
        with pytest.raises(StoreUnavailable, match="does not answer") as refused:
            await connection.query("RETURN 1")
        own_surreal_server.resume()
        await until(lambda: connection.is_ready)
        found = await connection.query("SELECT * FROM t")

    assert type(refused.value) is StoreUnavailable
    assert found == [[{"id": RecordID("t", 1)}]]


async def test_a_server_that_stays_silent_is_given_up(own_surreal_server: SurrealServer) -> None:
    place = SurrealDatabase(own_surreal_server.url, "tests", "main")
    settings = ConnectionSettings(ping_every_s=0.05, silent_s=0.1, lost_s=0.3, retry_s=0.02)
    async with connected(place, settings=settings) as connection:
        own_surreal_server.pause()
        with pytest.raises(OutcomeUnknown, match="ended"), anyio.fail_after(60):
            await connection.query("RETURN 1", deadline_s=60)
        own_surreal_server.resume()
        await until(lambda: connection.is_ready)

        assert await connection.query("RETURN 1") == [1]


async def test_a_server_that_answers_is_not_silent_because_this_process_is_busy(
    surreal_database: SurrealDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    settings = ConnectionSettings(ping_every_s=0.02, silent_s=0.05)
    async with connected(surreal_database, settings=settings) as connection:
        for _ in range(4):
            end = time.monotonic() + 0.1
            while time.monotonic() < end:
                """Nothing else runs meanwhile, and what was answered in time is read too late."""
            await anyio.sleep(0.03)

        assert connection.is_ready
        assert await connection.query("RETURN 1") == [1]
    assert "store_silent" not in caplog.messages


async def test_a_server_that_is_not_there_is_waited_for(
    own_surreal_server: SurrealServer,
) -> None:
    await to_thread.run_sync(own_surreal_server.stop)
    async with connected(SurrealDatabase(own_surreal_server.url, "tests", "main")) as connection:
        with pytest.raises(StoreUnavailable, match="cannot be reached"):
            await connection.query("RETURN 1")
        await to_thread.run_sync(own_surreal_server.start)
        await until(lambda: connection.is_ready)

        assert await connection.query("RETURN 1") == [1]


# A server that answers whatever a test says.

Answer = Callable[[dict[str, Any]], object]  # of a call: bytes as they are, a list of several


class Closing:
    """Instead of an answer."""


def honest(call: dict[str, Any]) -> object:
    match call["method"], call["params"]:
        case "version", _:
            result: object = "surrealdb-3.2.4"
        case "query", [str(text), *_]:
            result = [{"status": "OK", "result": text, "time": "1ms"}]
        case _:
            result = None
    return {"id": call["id"], "result": result}


def knowing(**answers: Answer) -> Answer:
    """Honest but for these methods; `asked` is a query after the sign-in."""

    def answer(call: dict[str, Any]) -> object:
        method = call["method"]
        if method == "query" and not call["params"][0].startswith("REMOVE"):
            method = "asked"
        return answers.get(method, honest)(call)

    return answer


class FakeSurreal:
    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.connections = 0
        self.headers: Callable[[ServerConnection, Request], Response | None] = lambda *_: None

    @contextlib.asynccontextmanager
    async def running(self, tls: ssl.SSLContext | None = None) -> AsyncIterator[SurrealDatabase]:
        more: dict[str, Any] = {
            "subprotocols": [Subprotocol("cbor")],
            "process_request": self._look,
            "ssl": tls,
        }
        async with serve(self._talk, "127.0.0.1", 0, **more) as server:
            port = server.sockets[0].getsockname()[1]
            scheme = "ws" if tls is None else "wss"
            yield SurrealDatabase(f"{scheme}://127.0.0.1:{port}", "tests", "main")

    def _look(self, line: ServerConnection, request: Request) -> Response | None:
        return self.headers(line, request)

    async def _talk(self, line: ServerConnection) -> None:
        self.connections += 1
        try:
            async for frame in line:
                answer = self.answer(cbor2.loads(frame))
                if isinstance(answer, Closing):
                    return
                for one in answer if isinstance(answer, list) else [answer]:
                    await line.send(one if isinstance(one, bytes | str) else cbor2.dumps(one))
        except ConnectionClosed:
            pass


SMALL = replace(QUICK, largest_answer=1 << 20)

NO_ANSWERS = {
    "text": "not CBOR at all",
    "garbage": b"\xff\xff\xff",
    "nothing": b"",
    "cut off": cbor2.dumps({"id": 5, "result": "x" * 50})[:-10],
    "a bomb of levels": b"\x81" * 100_000,
    "a bomb of a length": b"\x9b\x7f\xff\xff\xff\xff\xff\xff\xff",
    "no object": cbor2.dumps([1, 2]),
    "an id that was never used": cbor2.dumps({"id": 10_000, "result": []}),
    "an id that is no number": cbor2.dumps({"id": "1", "result": []}),
    "a time that is none": cbor2.dumps({"id": 5, "result": cbor2.CBORTag(12, "now")}),
    "a time of no calendar": cbor2.dumps({"id": 5, "result": cbor2.CBORTag(12, [2**62, 0])}),
    "a record that is none": cbor2.dumps({"id": 5, "result": cbor2.CBORTag(8, 1)}),
    "too large": cbor2.dumps({"id": 5, "result": "x" * (1 << 20)}),
}


@pytest.mark.parametrize("answer", NO_ANSWERS.values(), ids=NO_ANSWERS.keys())
async def test_a_server_that_answers_nonsense_is_left_and_tried_again(answer: bytes | str) -> None:
    server = FakeSurreal(knowing(asked=lambda call: answer))
    async with server.running() as place, connected(place, settings=SMALL) as connection:
        with pytest.raises(OutcomeUnknown), anyio.fail_after(60):
            await connection.query("CREATE t", deadline_s=60)
        server.answer = honest
        await until(lambda: connection.is_ready)

        assert await connection.query("RETURN 1") == ["RETURN 1"]
    assert server.connections == 2


SHAPES: dict[str, Answer] = {
    "an error that is a text": lambda call: {"id": call["id"], "error": "no"},
    "an error of no kind": lambda call: {"id": call["id"], "error": {}},
    "a result that is no list": lambda call: {"id": call["id"], "result": 1},
    "no result": lambda call: {"id": call["id"]},
    "statements that are none": lambda call: {"id": call["id"], "result": [1, None]},
    "a statement without a status": lambda call: {"id": call["id"], "result": [{}]},
    "kinds of another shape": lambda call: {
        "id": call["id"],
        "result": [
            {"status": "ERR", "kind": {}, "details": {"kind": [1], "details": {"kind": {}}}}
        ],
    },
    "details of another shape": lambda call: {
        "id": call["id"],
        "result": [{"status": "ERR", "kind": [], "details": [1], "result": None}],
    },
}


@pytest.mark.parametrize("answer", SHAPES.values(), ids=SHAPES.keys())
async def test_an_answer_of_another_shape_is_a_failure_of_its_call_alone(answer: Answer) -> None:
    server = FakeSurreal(knowing(asked=answer))
    async with server.running() as place, connected(place, settings=SMALL) as connection:
        with pytest.raises((OutcomeUnknown, StatementFailed)):
            await connection.query("CREATE t")
        server.answer = honest

        assert await connection.query("RETURN 1") == ["RETURN 1"]
    assert server.connections == 1


async def test_messages_to_nobody_are_passed_over() -> None:
    def talkative(call: dict[str, Any]) -> object:
        notification = {"result": {"action": "CREATE"}}
        to_nobody = {"error": {"kind": "Validation", "message": "Parse error"}}
        return [notification, to_nobody, {**notification, "id": None}, {"id": 1}, honest(call)]

    server = FakeSurreal(knowing(asked=talkative))
    async with server.running() as place, connected(place, settings=SMALL) as connection:
        assert await connection.query("RETURN 1") == ["RETURN 1"]


async def test_an_answer_that_does_not_come_is_unknown_at_the_deadline() -> None:
    server = FakeSurreal(knowing(asked=lambda call: []))
    settings = replace(SMALL, call_s=0.1)
    async with server.running() as place, connected(place, settings=settings) as connection:
        with pytest.raises(OutcomeUnknown, match="in time"), anyio.fail_after(60):
            await connection.query("CREATE t")
        with pytest.raises(OutcomeUnknown, match="in time"), anyio.fail_after(60):
            await connection.query("CREATE t", deadline_s=0.01)


async def test_a_server_that_closes_again_and_again_is_asked_ever_more_seldom() -> None:
    server = FakeSurreal(knowing(asked=lambda call: Closing()))

    async def ask(connection: SurrealConnection) -> None:
        with contextlib.suppress(StoreUnavailable):
            await connection.query("CREATE t")
        await anyio.sleep(0.005)

    settings = replace(SMALL, jitter=lambda: 1.0)
    async with server.running() as place, connected(place, settings=settings) as connection:
        began = anyio.current_time()
        while server.connections < 7:
            await ask(connection)
        took_s = anyio.current_time() - began

    assert took_s >= 0.7  # 0.02, 0.04, 0.08, 0.16, then 0.2 s between them


@pytest.mark.parametrize(
    ("version", "sentence"),
    [
        ("surrealdb-3.2.3", "and 3.2.4 is required"),
        ("surrealdb-2.99.99+20260101.abc", "3.2.4 is required"),
        ("somethingelse-9.9.9", "does not identify itself as SurrealDB"),
        (None, "does not identify itself as SurrealDB"),
    ],
)
async def test_an_old_server_is_a_sentence(version: object, sentence: str) -> None:
    server = FakeSurreal(knowing(version=lambda call: {"id": call["id"], "result": version}))
    async with server.running() as place:
        with pytest.raises(StoreRefused, match=sentence):
            await SurrealConnection(place.url, "tests", "main", ROOT, SMALL).open()


@pytest.mark.parametrize("version", ["surrealdb-3.2.4", "surrealdb-3.10.0", "surrealdb-4.0.0+x"])
async def test_a_new_server_is_used(version: str) -> None:
    server = FakeSurreal(knowing(version=lambda call: {"id": call["id"], "result": version}))
    async with server.running() as place, connected(place, settings=SMALL) as connection:
        assert await connection.query("RETURN 1") == ["RETURN 1"]


async def test_a_fault_of_the_server_at_the_sign_in_is_waited_out() -> None:
    def broken(call: dict[str, Any]) -> object:
        return {"id": call["id"], "error": {"kind": "Internal", "message": "not yet"}}

    server = FakeSurreal(knowing(signin=broken))
    async with server.running() as place, connected(place, settings=SMALL) as connection:
        with pytest.raises(StoreUnavailable, match="not yet"):
            await connection.query("RETURN 1")
        server.answer = honest
        await until(lambda: connection.is_ready)


async def test_a_password_that_the_server_repeats_is_hidden(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)

    def repeating(call: dict[str, Any]) -> object:
        return {"id": call["id"], "error": {"kind": "NotAllowed", "message": repr(call["params"])}}

    server = FakeSurreal(knowing(signin=repeating))
    async with server.running() as place:
        with pytest.raises(StoreRefused) as refused:
            await SurrealConnection(place.url, "tests", "main", ROOT, SMALL).open()

    assert PASSWORD not in str(refused.value)
    own = [record for record in caplog.records if record.name != "websockets.server"]
    assert not any(PASSWORD in record.getMessage() for record in own)


async def test_a_redirect_is_not_followed() -> None:
    other = FakeSurreal(honest)
    server = FakeSurreal(honest)
    async with other.running() as elsewhere, server.running() as place:
        headers = Headers({"Location": f"{elsewhere.url}/rpc"})
        server.headers = lambda *_: Response(HTTPStatus.FOUND, "Found", headers)
        async with connected(place, settings=SMALL) as connection:
            with pytest.raises(StoreUnavailable, match="HTTP 302"):
                await connection.query("RETURN 1")

    assert other.connections == 0


async def test_a_server_is_known_by_its_certificate(tmp_path: Path) -> None:
    file, trusted = await to_thread.run_sync(certificate_for, "127.0.0.1", tmp_path)
    shown = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    shown.load_cert_chain(file)
    server = FakeSurreal(honest)
    settings = replace(SMALL, tls=trusted)
    async with server.running(shown) as place:
        async with connected(place, settings=settings) as connection:
            assert await connection.query("RETURN 1") == ["RETURN 1"]
        async with connected(place, settings=SMALL) as connection:
            with pytest.raises(StoreUnavailable, match="certificate verify failed"):
                await connection.query("RETURN 1")

    assert server.connections == 1


async def test_a_server_that_says_nothing_at_all_is_waited_for() -> None:
    server = FakeSurreal(lambda call: [])
    settings = replace(SMALL, connect_s=0.1)
    async with server.running() as place, connected(place, settings=settings) as connection:
        with pytest.raises(StoreUnavailable, match="cannot be reached"):
            await connection.query("RETURN 1")


@pytest.mark.parametrize(
    "url",
    ["http://x", "ws://", "x", "ws://x:y", "ws://u:secret@x", "wss://x:99999", "ws://[x"],
)
async def test_an_address_that_is_none_is_a_sentence(url: str) -> None:
    with pytest.raises(StoreRefused, match=r"\[store\] url") as refused:
        await SurrealConnection(url, "tests", "main", ROOT).open()

    assert "secret" not in str(refused.value)


def test_an_answer_is_read_as_bytes() -> None:
    assert decode(encode({"id": 1, "result": [{"a": None}]})) == {"id": 1, "result": [{"a": None}]}
