"""A connection to a SurrealDB server: concurrent calls over one WebSocket, which reconnects.

The server answers CBOR with CBOR (https://surrealdb.com/docs/surrealdb/integration/rpc). It does
not answer a request that it cannot decode, so every value is checked before it is sent. A call that
was sent and not answered may have been executed: it raises OutcomeUnknown, and nothing is repeated
automatically.
"""

import asyncio
import contextlib
import logging
import random
import re
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Self
from urllib.parse import urlsplit
from uuid import UUID

import anyio
import cbor2
from anyio import CancelScope, to_thread
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.protocol import State
from websockets.typing import Subprotocol

from gateway.domain.errors import GatewayError, StoreMisconfigured, StoreRefused, StoreUnavailable
from gateway.domain.figures import SharedFigures
from gateway.domain.ids import EPOCH, Secret
from gateway.store.faults import TextRefused

log = logging.getLogger(__name__)

LEAST_VERSION: Final = (3, 2, 4)
LARGEST_REQUEST: Final = 64 * 1024 * 1024  # bytes; the server disconnects at more than twice that
MOST_PENDING: Final = 4_096  # calls that wait for an answer
DEEPEST: Final = 64
_SMALLEST_INT, _LARGEST_INT = -(2**63), 2**63 - 1
_LONGEST_REASON = 300
# The server silently ignores writes of a user who may only read. This statement needs the same
# right, fails without it, and changes nothing.
_MAY_WRITE = "REMOVE TABLE IF EXISTS exogate_may_write"
_CONSEQUENCES = frozenset({"NotExecuted", "Cancelled"})
_GRACE_S = 0.1  # before a server counts as silent
_FIRST_REPEAT_S, _LONGEST_REPEAT_S = 0.001, 0.05

# Tags of SurrealDB's CBOR; cbor2 itself handles UUIDs (37) and the text form of datetimes (0).
_NONE, _RECORD, _DATETIME, _DURATION = 6, 8, 12, 14

# The library logs whole frames at debug level, and one of them holds the password.
_NO_LOG = logging.getLogger(f"{__name__}.frames")
_NO_LOG.disabled = True

Jitter = Callable[[], float]  # evenly between 0 and 1
Params = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class RecordID:
    """The id of a record: a text, an integer, a UUID, or a tuple of these."""

    table: str
    id: object


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user of the server. An empty username skips the sign-in, which only a server without
    authentication permits."""

    username: str = ""
    password: Secret = Secret("")


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """Times are in seconds."""

    connect_s: float = 10.0  # until the connection is signed in
    call_s: float = 10.0  # for a call without its own deadline
    ping_every_s: float = 1.0
    silent_s: float = 1.5  # for the answer to a ping; after that, calls are refused
    lost_s: float = 10.0  # for the answer to a ping; after that, the connection is given up
    retry_s: float = 0.05
    longest_retry_s: float = 5.0
    largest_answer: int = 64 * 1024 * 1024  # bytes; a larger answer ends the connection
    jitter: Jitter = random.random
    tls: ssl.SSLContext | None = None  # None: the certificates of the system decide
    # False for further connections to the same server: one of them logs its state
    is_logged: bool = True


_USUAL = ConnectionSettings()


class OutcomeUnknown(StoreUnavailable):
    """The call was sent and not answered: the server may have executed it, or will."""


class TransactionConflict(StoreUnavailable):
    """Another transaction wrote the same record first, and nothing was written: repeat it."""


class StatementRefused(GatewayError):
    """A statement threw `exogate:REASON`, and its transaction was undone."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the store refused a commit: {reason}")
        self.reason = reason


class RecordExists(GatewayError):
    """A record with that id exists, and the transaction was undone."""


class StatementFailed(GatewayError):
    """A statement failed for another reason: a mistake in it, or a value that does not fit its
    field."""


_OUTCOMES: Mapping[type[GatewayError], str] = {
    OutcomeUnknown: "unknown",
    TransactionConflict: "conflict",
    StoreUnavailable: "unavailable",
}


class _Dial(connect):
    """Follows no redirect: it would send the password to another server."""

    def process_redirect(self, exc: Exception) -> Exception:
        return exc


class SurrealConnection:
    """A connection. `open` makes it; `run` reads its answers and reconnects until it is cancelled."""

    def __init__(
        self,
        url: str,
        namespace: str,
        database: str,
        credentials: Credentials,
        settings: ConnectionSettings = _USUAL,
    ) -> None:
        """Raises StoreRefused for an invalid address."""
        self.where, self._url = _address(url)
        self._namespace, self._database = namespace, database
        self._credentials, self._settings = credentials, settings
        self.figures = SharedFigures()
        self._context = settings.tls
        self._socket: ClientConnection | None = None
        self._is_silent = False
        self._answers = 0  # answers
        self._is_warned = False  # about an undecodable request
        self._why = ""  # the reason why there is no connection
        self._refused: StoreRefused | None = None  # by the last attempt
        self._attempted = anyio.Event()
        # A query and its result, which identify the database.
        self.bound: tuple[str, object] | None = None
        self._level: dict[str, str] | None = None  # of the user, once known
        self._last_id = 0
        self._pending: dict[int, asyncio.Future[dict[str, Any] | None]] = {}

    async def open(self) -> Self:
        """Connects once; `run` retries a server that does not answer. Raises StoreRefused for
        unusable credentials, databases or versions."""
        try:
            self._socket = await self._connect()
        except StoreUnavailable as error:
            self._why = str(error)
        return self

    @property
    def is_ready(self) -> bool:
        """True if there is a connection and its server answers."""
        return self._socket is not None and not self._is_silent

    async def connected(self) -> None:
        """Returns when there is a connection. Raises StoreRefused if the server refuses it."""
        while not self.is_ready:
            if self._refused is not None:
                raise self._refused
            await self._attempted.wait()

    async def run(self) -> None:
        """Reads answers and reconnects whenever the connection ends, until it is cancelled."""
        pause_s = self._settings.retry_s
        try:
            while True:
                if self._socket is None:
                    await anyio.sleep(pause_s * (1 + self._settings.jitter()) / 2)
                    pause_s = min(2 * pause_s, self._settings.longest_retry_s)
                    await self._reconnect()
                    continue
                began = anyio.current_time()
                self._lose(await self._serve(self._socket))
                if anyio.current_time() - began > self._settings.longest_retry_s:
                    pause_s = self._settings.retry_s
        finally:
            await self.close()

    async def close(self) -> None:
        """Closes the connection; waiting calls raise OutcomeUnknown. A second close does nothing."""
        socket, self._socket = self._socket, None
        self._why = "the store is closed"
        self._forget_pending()
        if socket is not None:
            with CancelScope(shield=True):
                await socket.close()

    async def query(
        self,
        text: str,
        params: Params | None = None,
        *,
        deadline_s: float | None = None,
        moment: UUID | None = None,
    ) -> list[Any]:
        """Returns the result of each statement, as of `moment` if given. Raises StatementRefused,
        RecordExists, TransactionConflict or StatementFailed if any statement fails, StoreRefused if
        the user lacks the right, StoreUnavailable if nothing was sent, OutcomeUnknown if no answer
        came, and TextRefused, TypeError or ValueError for values that the server cannot decode."""
        within = {} if moment is None else {"txn": moment}
        began, outcome = time.monotonic(), "unknown"
        try:
            answer = await self._call("query", text, params or {}, deadline_s=deadline_s, **within)
            results, outcome = self._results(answer), "answered"
        except GatewayError as error:
            outcome = _OUTCOMES.get(type(error), "refused")
            raise
        finally:
            self.figures.request(outcome, time.monotonic() - began)
        return results

    @contextlib.asynccontextmanager
    async def moment(self) -> AsyncIterator[UUID]:
        """Yields a snapshot of the database: reads within it do not see later writes."""
        answer = await self._call("begin")
        if not isinstance(found := answer.get("result"), UUID):
            raise self._refusal("does not keep a moment to read", answer)
        try:
            yield found
        finally:
            with CancelScope(shield=True), contextlib.suppress(StoreUnavailable):
                await self._call("cancel", found)

    async def _call(
        self,
        method: str,
        *params: object,
        deadline_s: float | None = None,
        **more: object,
    ) -> dict[str, Any]:
        """Returns the answer to a call. Raises StoreUnavailable, OutcomeUnknown."""
        socket = self._require_ready()
        self._last_id = number = self._last_id + 1
        request = encode({"id": number, "method": method, "params": params, **more})
        waiter: asyncio.Future[dict[str, Any] | None] = asyncio.get_running_loop().create_future()
        self._pending[number] = waiter
        try:
            with anyio.fail_after(self._settings.call_s if deadline_s is None else deadline_s):
                await socket.send(request)
                answer = await waiter
        except TimeoutError as error:
            raise OutcomeUnknown(f"{self.where} did not answer in time") from error
        except ConnectionClosed:
            answer = None
        finally:
            self._pending.pop(number, None)
        if answer is None:
            raise OutcomeUnknown(f"the connection to {self.where} ended before an answer came")
        return answer

    async def commit(
        self, text: str, params: Params | None = None, *, deadline_s: float | None = None
    ) -> list[Any]:
        """Runs a text that is one transaction, like `query`, and repeats it after conflicts. Raises
        TransactionConflict at the deadline."""
        end = anyio.current_time() + (self._settings.call_s if deadline_s is None else deadline_s)
        pause_s = _FIRST_REPEAT_S
        while True:
            try:
                return await self.query(text, params, deadline_s=end - anyio.current_time())
            except TransactionConflict:
                if anyio.current_time() + pause_s >= end:
                    raise
                await anyio.sleep(pause_s * self._settings.jitter())
                pause_s = min(2 * pause_s, _LONGEST_REPEAT_S)

    def _require_ready(self) -> ClientConnection:
        socket = self._socket
        if socket is None:
            raise StoreUnavailable(self._why)
        if self._is_silent or socket.state is not State.OPEN:
            raise StoreUnavailable(f"{self.where} does not answer")
        if len(self._pending) >= MOST_PENDING:
            raise StoreUnavailable(f"{self.where} answers too slowly: too many calls wait")
        return socket

    async def _reconnect(self) -> None:
        try:
            self._socket = await self._connect()
        except (StoreUnavailable, StoreRefused) as error:
            self._refused = error if isinstance(error, StoreRefused) else None
            self._lose(str(error))
        else:
            self._why, self._refused = "", None
            self._log(logging.INFO, "store_connected")
        self._wake_waiters()

    async def _connect(self) -> ClientConnection:
        """Connects and signs in. Raises StoreUnavailable, StoreRefused."""
        try:
            with anyio.fail_after(self._settings.connect_s), contextlib.ExitStack() as undo:
                socket = await _Dial(
                    f"{self._url}/rpc",
                    subprotocols=[Subprotocol("cbor")],
                    compression=None,
                    max_size=self._settings.largest_answer,
                    open_timeout=None,
                    ping_interval=None,  # `_keep_alive` pings: the library detects silence late
                    close_timeout=0.5,
                    proxy=None,
                    logger=_NO_LOG,
                    **await self._tls(),
                )
                undo.callback(socket.transport.abort)
                await self._sign_in(socket)
                undo.pop_all()
        except (OSError, EOFError, WebSocketException) as error:
            why = self._clean(str(error)) or "it does not answer"
            raise StoreUnavailable(f"{self.where} cannot be reached: {why}") from error
        return socket

    async def _tls(self) -> dict[str, Any]:
        if not self._url.startswith("wss:"):
            return {}
        if self._context is None:  # made once: it reads the system's certificates
            self._context = await to_thread.run_sync(ssl.create_default_context)
        return {"ssl": self._context}

    async def _sign_in(self, socket: ClientConnection) -> None:
        answer = await self._ask(socket, "version")
        if "error" in answer:
            raise self._refusal("does not say its version", answer)
        self._require_version(answer.get("result"))
        if self._credentials.username:
            await self._find_level(socket)
        answer = await self._ask(socket, "use", self._namespace, self._database)
        if "error" in answer:
            place = f"database {self._database!r} of namespace {self._namespace!r}"
            raise self._refusal(f"does not open {place}", answer)
        with contextlib.suppress(TransactionConflict):  # a conflict proves the right to write
            self._results(await self._ask(socket, "query", _MAY_WRITE))
        await self._require_same(socket)

    async def _require_same(self, socket: ClientConnection) -> None:
        """Raises StoreMisconfigured for another database than before: its acknowledged writes would
        be missing."""
        if self.bound is not None:
            text, expected = self.bound
            found: object = None
            with contextlib.suppress(StatementFailed):  # the tables do not exist
                found = self._results(await self._ask(socket, "query", text))
            if found != [[expected]]:
                raise StoreMisconfigured(
                    f"{self.where} has lost or replaced database {self._database!r}: restore it, or "
                    "restart the gateway to use the present one"
                )

    async def _find_level(self, socket: ClientConnection) -> None:
        """Signs in as a user of the database, of the namespace, or as root."""
        namespace, database = self._namespace, self._database
        name, password = self._credentials.username, self._credentials.password.reveal()
        levels: list[dict[str, str]] = [{"NS": namespace, "DB": database}, {"NS": namespace}, {}]
        answer: dict[str, Any] = {}
        for level in levels if self._level is None else [self._level]:
            answer = await self._ask(socket, "signin", {**level, "user": name, "pass": password})
            if "error" not in answer:
                self._level = level
                return
        self._level = None
        raise self._refusal(
            f"refuses user {name!r}, as a user of database {database!r}, of namespace {namespace!r} "
            "and as root: check username and password in [store]",
            answer,
        )

    def _refusal(self, what: str, answer: dict[str, Any]) -> GatewayError:
        """Returns the error for a failed sign-in: only an operator can fix some failures; others
        pass."""
        error = _fields(answer["error"])
        sentence = f"{self.where} {what} ({self._reason(error)})"
        needs_operator = _kind(error) in {"NotAllowed", "NotFound", "Validation"}
        return StoreMisconfigured(sentence) if needs_operator else StoreUnavailable(sentence)

    def _require_version(self, version: object) -> None:
        found = re.fullmatch(r"surrealdb-(\d{1,6})\.(\d{1,6})\.(\d{1,6})(?:\W.*)?", str(version))
        if found is None:
            raise StoreMisconfigured(
                f"{self.where} does not identify itself as SurrealDB: check [store] url"
            )
        if tuple(map(int, found.groups())) < LEAST_VERSION:
            least = ".".join(map(str, LEAST_VERSION))
            raise StoreMisconfigured(
                f"{self.where} runs SurrealDB {'.'.join(found.groups())}, and {least} is required: "
                "upgrade the server"
            )

    async def _ask(self, socket: ClientConnection, method: str, *params: object) -> dict[str, Any]:
        """Makes one call on a connection that is not shared yet."""
        self._last_id += 1
        await socket.send(encode({"id": self._last_id, "method": method, "params": params}))
        answer = decode(await socket.recv(decode=False))
        if answer is None or answer.get("id") != self._last_id:
            raise StoreUnavailable(f"{self.where} sent an invalid answer")
        return answer

    async def _serve(self, socket: ClientConnection) -> str:
        """Delivers answers until the connection ends. Returns the reason."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._keep_alive, socket)
            why = await self._read(socket)
            group.cancel_scope.cancel()
        socket.transport.abort()
        return why

    async def _read(self, socket: ClientConnection) -> str:
        try:
            while self._deliver(decode(await socket.recv(decode=False))):
                self._answers += 1
        except ConnectionClosed as error:
            return f"the connection to {self.where} ended: {self._clean(str(error))}"
        return f"{self.where} sent an invalid answer"

    def _deliver(self, answer: dict[str, Any] | None) -> bool:
        """Passes an answer to its call; False if it answers no call that was made."""
        if answer is None:
            return False
        number = answer.get("id")
        if number is None:  # a notification, or an error for an undecodable call
            if "error" in answer and not self._is_warned:
                self._is_warned = True
                log.error("store_answered_nobody", extra={"store": self.where})
            return True
        if not isinstance(number, int) or not 0 < number <= self._last_id:
            return False
        waiter = self._pending.get(number)
        if waiter is not None and not waiter.done():
            waiter.set_result(answer)
        return True

    async def _keep_alive(self, socket: ClientConnection) -> None:
        """Detects a silent server, and gives the connection up if it stays silent."""
        while True:
            await anyio.sleep(self._settings.ping_every_s)
            with anyio.move_on_after(self._settings.lost_s) as lost:
                try:
                    await self._ping(socket)
                except ConnectionClosed:
                    return
            if lost.cancelled_caught:
                socket.transport.abort()
                return

    async def _ping(self, socket: ClientConnection) -> None:
        pong: Any = None
        with anyio.move_on_after(self._settings.silent_s) as late:
            pong = await socket.ping()
            await asyncio.shield(pong)
        if late.cancelled_caught:
            heard = self._answers
            await anyio.sleep(_GRACE_S)  # a busy loop may not have read a timely answer yet
            if self._answers > heard or (pong is not None and pong.done()):
                return
            self._is_silent = True
            self._log(logging.WARNING, "store_silent")
            await asyncio.shield(pong if pong is not None else await socket.ping())
            self._log(logging.INFO, "store_answers_again")
            self._is_silent = False
            self._wake_waiters()

    def _log(self, level: int, event: str, **facts: str) -> None:
        if self._settings.is_logged:
            log.log(level, event, extra={"store": self.where, **facts})

    def _wake_waiters(self) -> None:
        self._attempted.set()
        self._attempted = anyio.Event()

    def _lose(self, why: str) -> None:
        """Forgets the connection. Logs the loss once, until the next connection."""
        if not self._why:
            self._log(logging.WARNING, "store_disconnected", why=why)
        self._socket, self._is_silent, self._why = None, False, why
        self._forget_pending()

    def _forget_pending(self) -> None:
        for waiter in self._pending.values():
            if not waiter.done():
                waiter.set_result(None)

    def _results(self, answer: dict[str, Any]) -> list[Any]:
        if "error" in answer:
            raise self._failure(_fields(answer["error"]))
        statements = answer.get("result")
        if not isinstance(statements, list):
            raise OutcomeUnknown(f"{self.where} sent an invalid answer")
        failed = [one for one in map(_fields, statements) if one.get("status") != "OK"]
        if failed:
            # One failed statement fails all others of its transaction.
            causes = [one for one in failed if _kind(one.get("details")) not in _CONSEQUENCES]
            raise self._failure((causes or failed)[0])
        return [one.get("result") for one in statements]

    def _failure(self, error: dict[str, Any]) -> GatewayError:
        """Returns the error for a failed request or statement."""
        kind, reason = _kind(error), self._reason(error)
        detail = _kind(error.get("details"))
        if detail == "TransactionConflict":
            return TransactionConflict(
                f"{self.where}: another node wrote the same record at the same time"
            )
        if kind == "Thrown" and "exogate:" in reason:
            return StatementRefused(reason.rpartition("exogate:")[2])
        if kind == "AlreadyExists" and detail == "Record":
            return RecordExists(reason)
        if kind == "NotAllowed":
            return self._not_allowed(error)
        if detail in _CONSEQUENCES or "commit outcome is unknown" in reason:  # or its disk is full
            return OutcomeUnknown(f"{self.where}: {reason}")
        return StatementFailed(f"{self.where}: {reason}")

    def _not_allowed(self, error: dict[str, Any]) -> GatewayError:
        if _kind(_fields(error.get("details")).get("details")) != "SessionExpired":
            return StoreMisconfigured(
                f"{self.where} refuses a write of user {self._credentials.username!r}: give it the role "
                f"EDITOR ({self._reason(error)})"
            )
        if self._socket is not None:  # the next connection signs in again
            self._socket.transport.abort()
        return StoreUnavailable(f"{self.where}: the session has expired")

    def _reason(self, error: dict[str, Any]) -> str:
        """Returns the server's message, without the refused value."""
        message = error.get("message") or error.get("result")
        return self._clean(str(message)).partition(" but found ")[0]

    def _clean(self, text: str) -> str:
        if password := self._credentials.password.reveal():
            text = text.replace(password, "***")
        return " ".join(text.split())[:_LONGEST_REASON]


def _fields(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _kind(value: object) -> str:
    return str(_fields(value).get("kind"))


def _address(url: str) -> tuple[str, str]:
    """Returns the name of the server for messages, and its address."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise StoreMisconfigured("[store] url is invalid: write ws://HOST:PORT") from error
    if parts.scheme not in {"ws", "wss"} or not host:
        raise StoreMisconfigured("[store] url is invalid: write ws://HOST:PORT")
    if parts.username is not None or parts.password is not None:
        raise StoreMisconfigured(
            "[store] url holds a password: write it in [store] username and password instead"
        )
    name = f"[{host}]" if ":" in host else host
    place = name if port is None else f"{name}:{port}"
    return f"SurrealDB at {place}", f"{parts.scheme}://{place}"


def encode(value: object) -> bytes:
    """Raises TextRefused, TypeError, ValueError for values that the server cannot decode."""
    try:
        encoded: bytes = cbor2.dumps(_sendable(value, 0))
    except UnicodeEncodeError as error:
        raise TextRefused from error
    if len(encoded) > LARGEST_REQUEST:
        raise ValueError(f"a request of {len(encoded)} bytes is too large for the store")
    return encoded


_PLAIN = (str, bytes, bool, float, UUID)


def _sendable(value: Any, depth: int) -> object:
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, int):
        if not _SMALLEST_INT <= value <= _LARGEST_INT:
            raise ValueError("an integer must fit 64 bits")
        return value
    if depth > DEEPEST:
        raise ValueError(f"a value is nested deeper than {DEEPEST} levels")
    if isinstance(value, dict):
        return {_text(key): _sendable(one, depth + 1) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_sendable(one, depth + 1) for one in value]
    return _tagged(value, depth)


def _text(key: object) -> str:
    if not isinstance(key, str):
        raise TypeError("a key of an object must be a text")
    return key


def _tagged(value: Any, depth: int) -> object:
    match value:
        case None:  # NONE: an optional field refuses NULL
            return cbor2.CBORTag(_NONE, None)
        case RecordID(id=None):
            raise TypeError("a record needs an id")
        case RecordID():
            return cbor2.CBORTag(_RECORD, [value.table, _sendable(value.id, depth + 1)])
        case timedelta():
            seconds = value.days * 86_400 + value.seconds
            return cbor2.CBORTag(_DURATION, [seconds, value.microseconds * 1_000])
    raise TypeError(f"a value of type {type(value).__name__} cannot be stored")


def decode(message: bytes) -> dict[str, Any] | None:
    """Returns a message of the server; None if it is invalid."""
    try:
        decoded = cbor2.loads(message, tag_hook=_untagged, max_depth=4 * DEEPEST)
    except (cbor2.CBORDecodeError, ValueError, TypeError, OverflowError, ArithmeticError):
        return None
    return decoded if isinstance(decoded, dict) else None


def _untagged(tag: Any, immutable: bool) -> object:  # noqa: FBT001  # the library's signature
    number, value = tag.tag, tag.value
    if number == _NONE:
        return None
    if number == _RECORD:
        table, identity = value  # an array in it is a tuple already
        return RecordID(table, identity)
    if number == _DATETIME:
        seconds, nanoseconds = value
        return EPOCH + timedelta(0, seconds, nanoseconds // 1_000)
    return tag
