"""Hints between nodes over NATS: the port Hints. No answer depends on them.

A client of the library serves one connection. After that a new client connects and subscribes
again: messages published meanwhile are dropped at once, never sent late.
"""

import json
import logging
import re
import ssl
from base64 import b32hexencode
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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
MOST_WAITING: Final = 4 * 1024 * 1024  # bytes that wait for the library
# hints of a subject; beyond this or MOST_WAITING, the library drops the newest
_MOST_UNREAD = 4_096
_COUNTED = dict.fromkeys(("sent", "received", "dropped", "malformed"), 0)
_NKEY = re.compile("SU[A-Z2-7]{56}")


@dataclass(frozen=True, slots=True)
class HintSettings:
    """Times are in seconds."""

    connect_s: float = 5.0
    ping_every_s: float = 5.0  # a silent server is detected in two to three times this
    retry_s: float = 0.2
    longest_retry_s: float = 5.0
    tls: ssl.SSLContext | None = None  # None: the certificates of the system decide


_USUAL = HintSettings()


class NatsHints:
    """Publishes and receives hints. `cluster` names the store, and so separates clusters that share
    a NATS server; `url` may name several servers, separated by commas. `run` connects and reconnects;
    without a connection every hint is dropped."""

    def __init__(
        self,
        url: str,
        cluster: str,
        credentials: Secret,
        clock: Clock,
        settings: HintSettings = _USUAL,
    ) -> None:
        self.url, self.credentials, self.clock, self.settings = url, credentials, clock, settings
        # Hints: `dropped` were not sent, `malformed` were received and unreadable.
        self.counts = Counter(_COUNTED)
        digest = sha256(cluster.encode()).digest()
        self._prefix = f"exogate.{b32hexencode(digest[:10]).decode().lower()}."
        self._where = ", ".join(urlsplit(one).hostname or "" for one in url.split(","))
        self._client: Client | None = None
        self._listeners: dict[str, list[Listen]] = {}
        self._waiting: deque[tuple[str, bytes]] = deque()
        self._waiting_bytes = 0
        self._changed = anyio.Event()
        self._is_logged = False  # the lost connection was logged

    @property
    def degraded(self) -> Sequence[str]:
        return () if self._client is not None else ("nats",)

    def publish(self, subject: str, hint: Hint) -> bool:
        is_connected = self._client is not None and self._client.is_connected
        payload = json.dumps({**hint, "v": VERSION}, separators=(",", ":")).encode()
        most = min(LARGEST_HINT, MOST_WAITING - self._waiting_bytes)
        if not is_connected or len(payload) > most:
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
        """Connects and reconnects until it is cancelled."""
        pause_s = self.settings.retry_s
        while True:
            began = self.clock.monotonic()
            why = await self._connection()
            if not self._is_logged:
                log.warning("nats_disconnected", extra={"nats": self._where, "why": why})
            self._is_logged = True
            if self.clock.monotonic() - began > self.settings.longest_retry_s:
                pause_s = self.settings.retry_s
            await self.clock.sleep(pause_s)
            pause_s = min(2 * pause_s, self.settings.longest_retry_s)

    async def _connection(self) -> str:
        """Runs one connection from start to end. Returns the reason for the end."""
        client, errors = Client(), _Errors(self._where)
        try:
            await self._connect(client, errors)
            if client.is_connected:
                self._client, self._is_logged = client, False
                log.info("nats_connected", extra={"nats": self._where})
                await self._exchange(client, errors)
        except (Error, OSError, TimeoutError) as error:
            errors.newest = error
        finally:
            self._client = None
            self._waiting.clear()
            self._waiting_bytes = 0
            with CancelScope(shield=True), anyio.move_on_after(1.0):
                await client.close()
        return repr(errors.newest) if errors.newest is not None else "it does not answer"

    async def _connect(self, client: Client, errors: "_Errors") -> None:
        more = _login(self.credentials.reveal())
        if self.url.startswith(("tls:", "wss:")):
            more["tls"] = self.settings.tls or await to_thread.run_sync(ssl.create_default_context)
        more["ping_interval"] = self.settings.ping_every_s  # typed as an integer in the library
        with anyio.move_on_after(self.settings.connect_s) as errors.scope:
            await client.connect(
                self.url.split(","),
                error_cb=errors.note,
                closed_cb=errors.end,
                allow_reconnect=False,
                connect_timeout=max(1, int(self.settings.connect_s)),
                max_outstanding_pings=1,
                no_echo=True,
                **more,
            )

    async def _exchange(self, client: Client, errors: "_Errors") -> None:
        """Sends waiting hints and keeps the subscriptions current, until the connection ends."""
        subscribed: dict[str, Subscription] = {}
        with CancelScope() as errors.scope:
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
    """Returns None if the payload is no hint of this version: any client may publish."""
    if len(payload) > LARGEST_HINT:
        return None
    try:
        hint = json.loads(payload)
    except (ValueError, RecursionError):
        return None
    return hint if isinstance(hint, dict) and hint.get("v") == VERSION else None


def _login(credentials: str) -> dict[str, Any]:
    """Accepts a file of credentials, the seed of an nkey, USER:PASSWORD, or a token."""
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
    """Callbacks for the library's errors on one connection."""

    where: str
    newest: Exception | None = None
    scope: CancelScope | None = None  # of the task that uses the connection
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
