"""Hints between nodes over NATS: the port Hints. Nothing here is needed for a message to be answered.

A client of the library serves one connection. When that ends, a new one is made and subscribes anew: what
was published meanwhile is dropped at once, and never sent late.
"""

import json
import logging
import re
import ssl
from base64 import b32hexencode
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final
from urllib.parse import urlsplit

import anyio
from anyio import CancelScope, to_thread
from nats.aio.client import Client, RawCredentials
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error, SlowConsumerError

from gateway.domain.cluster import Hint, Listen
from gateway.domain.ids import Secret
from gateway.domain.ports import Clock

log = logging.getLogger(__name__)

VERSION: Final = 1  # of a hint
LARGEST_HINT: Final = 256 * 1024  # bytes
MOST_WAITING: Final = 4 * 1024 * 1024  # bytes that are not given to the library yet
_MOST_UNREAD = 4_096  # hints of a subject; beyond it, or MOST_WAITING, the library drops the newest
_COUNTED = dict.fromkeys(("sent", "received", "dropped", "malformed"), 0)
_NKEY = re.compile("SU[A-Z2-7]{56}")


@dataclass(frozen=True, slots=True)
class HintSettings:
    """Times are in seconds."""

    connect_s: float = 5.0
    ping_every_s: float = 5.0  # a silent server is found out in two to three times that
    retry_s: float = 0.2
    longest_retry_s: float = 5.0
    tls: ssl.SSLContext | None = None  # None: the certificates of the system decide


@dataclass(eq=False, slots=True)
class NatsHints:
    """`cluster` tells clusters apart that share a NATS server: it names their store. `run` connects, and
    connects again; until then, and without it, every hint is dropped."""

    url: str  # several are separated by commas
    cluster: str
    credentials: Secret
    clock: Clock
    settings: HintSettings = HintSettings()
    # Of hints; those that were not sent are dropped, those that came and were none are malformed.
    counts: Counter[str] = field(init=False, default_factory=lambda: Counter(_COUNTED))
    _prefix: str = field(init=False)
    _where: str = field(init=False)
    _client: Client | None = field(init=False, default=None)
    _listeners: dict[str, list[Listen]] = field(init=False, default_factory=dict)
    _waiting: deque[tuple[str, bytes]] = field(init=False, default_factory=deque)
    _waiting_bytes: int = field(init=False, default=0)
    _changed: anyio.Event = field(init=False, default_factory=anyio.Event)
    _is_told: bool = field(init=False, default=False)  # that there is no connection

    def __post_init__(self) -> None:
        digest = sha256(self.cluster.encode()).digest()
        self._prefix = f"exogate.{b32hexencode(digest[:10]).decode().lower()}."
        hosts = (urlsplit(url).hostname or "" for url in self.url.split(","))
        self._where = ", ".join(hosts)

    @property
    def degraded(self) -> Sequence[str]:
        return () if self._client is not None else ("nats",)

    def publish(self, subject: str, hint: Hint) -> bool:
        client = self._client
        if client is None or not client.is_connected:
            self.counts["dropped"] += 1
            return False
        payload = json.dumps({**hint, "v": VERSION}, separators=(",", ":")).encode()
        if len(payload) > LARGEST_HINT or self._waiting_bytes + len(payload) > MOST_WAITING:
            self.counts["dropped"] += 1
            return False
        self._waiting.append((self._prefix + subject, payload))
        self._waiting_bytes += len(payload)
        self._changed.set()
        return True

    @contextmanager
    def listen(self, subject: str, listen: Listen) -> Iterator[None]:
        listeners = self._listeners.setdefault(subject, [])
        listeners.append(listen)
        self._changed.set()
        try:
            yield
        finally:
            listeners.remove(listen)
            if not listeners and self._listeners.get(subject) is listeners:
                del self._listeners[subject]
            self._changed.set()

    async def run(self) -> None:
        """Until it is cancelled."""
        pause_s = self.settings.retry_s
        while True:
            began = self.clock.monotonic()
            why = await self._connection()
            if not self._is_told:
                log.warning("nats_disconnected", extra={"nats": self._where, "why": why})
            self._is_told = True
            if self.clock.monotonic() - began > self.settings.longest_retry_s:
                pause_s = self.settings.retry_s
            await self.clock.sleep(pause_s)
            pause_s = min(2 * pause_s, self.settings.longest_retry_s)

    async def _connection(self) -> str:
        """One connection, from its beginning to its end; gives why it ended."""
        client, said = Client(), _Errors(self._where)
        try:
            await self._connect(client, said)
            if client.is_connected:
                self._client, self._is_told = client, False
                log.info("nats_connected", extra={"nats": self._where})
                await self._pump(client, said)
        except (Error, OSError, TimeoutError) as error:
            said.newest = error
        finally:
            self._client = None
            self._waiting.clear()
            self._waiting_bytes = 0
            with CancelScope(shield=True), anyio.move_on_after(1.0):
                await client.close()
        return repr(said.newest) if said.newest is not None else "it does not answer"

    async def _connect(self, client: Client, said: "_Errors") -> None:
        more: dict[str, Any] = _login(self.credentials.reveal())
        if self.url.startswith(("tls:", "wss:")):
            more["tls"] = self.settings.tls or await to_thread.run_sync(ssl.create_default_context)
        more["ping_interval"] = self.settings.ping_every_s  # which the library takes for an integer
        with anyio.move_on_after(self.settings.connect_s) as said.scope:
            await client.connect(
                self.url.split(","),
                error_cb=said.note,
                closed_cb=said.end,
                allow_reconnect=False,
                connect_timeout=max(1, int(self.settings.connect_s)),
                max_outstanding_pings=1,
                no_echo=True,
                **more,
            )

    async def _pump(self, client: Client, said: "_Errors") -> None:
        """Sends what waits, and subscribes to what is listened to, until the connection ends."""
        subscribed: dict[str, Subscription] = {}
        with CancelScope() as said.scope:
            while client.is_connected:
                self._changed = anyio.Event()
                for subject in self._listeners.keys() - subscribed.keys():
                    subscribed[subject] = await client.subscribe(
                        self._prefix + subject,
                        cb=self._reader(subject),
                        pending_msgs_limit=_MOST_UNREAD,
                        pending_bytes_limit=MOST_WAITING,
                    )
                for subject in subscribed.keys() - self._listeners.keys():
                    await subscribed.pop(subject).unsubscribe()
                while self._waiting:
                    subject, payload = self._waiting.popleft()
                    self._waiting_bytes -= len(payload)
                    await client.publish(subject, payload)
                    self.counts["sent"] += 1
                await self._changed.wait()

    def _reader(self, subject: str) -> Any:
        async def read(message: Msg) -> None:
            hint = parse_hint(message.data)
            if hint is None:
                self.counts["malformed"] += 1
                return
            self.counts["received"] += 1
            for listen in tuple(self._listeners.get(subject, ())):
                listen(hint)

        return read


def parse_hint(payload: bytes) -> Hint | None:
    """Anybody may have published it: None for what is no hint of this version."""
    if len(payload) > LARGEST_HINT:
        return None
    try:
        hint = json.loads(payload)
    except (ValueError, RecursionError):
        return None
    return hint if isinstance(hint, dict) and hint.get("v") == VERSION else None


def _login(credentials: str) -> dict[str, Any]:
    """A file of credentials, the seed of an nkey, USER:PASSWORD, or a token."""
    text = credentials.strip()
    if not text:
        return {}
    if "BEGIN NATS USER JWT" in text:
        return {"user_credentials": RawCredentials(text)}
    if _NKEY.fullmatch(text):
        return {"nkeys_seed_str": text}
    user, colon, password = text.partition(":")
    return {"user": user, "password": password} if colon else {"token": text}


@dataclass(slots=True)
class _Errors:
    """What the library says of a connection."""

    where: str
    newest: Exception | None = None
    scope: CancelScope | None = None  # of what waits for the connection
    is_slow: bool = False

    async def note(self, error: Exception) -> None:
        if isinstance(error, SlowConsumerError):  # it has dropped a hint
            if not self.is_slow:
                log.warning("nats_hints_dropped", extra={"nats": self.where})
            self.is_slow = True
        elif isinstance(error, (Error, OSError, TimeoutError)):
            self.newest = error
            await self.end()
        else:
            log.error("nats_listener_failed", exc_info=error)

    async def end(self) -> None:
        if self.scope is not None:
            self.scope.cancel()
