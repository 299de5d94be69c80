"""Webhooks: verifies a call over its raw bytes before its body is parsed, then accepts its messages.

The adapter's description holds the recipe of the verification. `sign_headers` signs a call the same
way, for simulated platforms.
"""

import hashlib
import hmac
import logging
import re
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal
from urllib.parse import parse_qsl

from gateway.channels.adapters import Challenge, Description, HttpReply, Verify, Webhook
from gateway.channels.intake import OpenChannel, Received
from gateway.domain.channels import ChannelDef, WebhookAnswer, WebhookCall
from gateway.domain.errors import AdapterFailed, Busy, GatewayError, StoreUnavailable
from gateway.domain.events import AuditEvent, Recurrences
from gateway.domain.ports import Audit, Clock

log = logging.getLogger(__name__)

LARGEST_BODY = 4 * 1024 * 1024
MOST_PARAMETERS = 32
MOST_SIGNATURES = 16  # of one call
LONGEST_SECRET = 1_024
WHSEC = "whsec_"
NOT_HERE = WebhookAnswer(404)
NOT_YET = WebhookAnswer(503, (("retry-after", "5"),))
_CONTENT_TYPE = re.compile(r"[A-Za-z0-9!#$&^_.+/;= -]{1,100}")
_BODILESS = frozenset({204, 205, 304})  # a body would be read as the next answer
_TIME = re.compile(r"[0-9]{1,12}")
_ID = re.compile(r"[!-~]{1,256}")
_SIGNED = re.compile(r"(\{timestamp\}|\{id\}|\{body\})")
_HEX_KEY = re.compile(r"[0-9A-Fa-f]{64}")

_Y = 2**255 - 1  # mask of a point's y coordinate
_P = 2**255 - 19
_OF_ORDER_8 = 0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7
# The points of small order in all encodings. Anyone can forge signatures for such a key, for example
# for a key of zeros.
_SMALL = frozenset({0, 1, _P - 1, _P, _P + 1, _OF_ORDER_8, _P - _OF_ORDER_8})

Headers = tuple[tuple[str, str], ...]
Why = Literal["missing", "stale", "wrong"]


class ChannelRefused(GatewayError):
    """A channel is not started; the text names the channel, the problem and the fix."""

    code = "channel_refused"

    def __init__(self, channel: str, problem: str) -> None:
        super().__init__(f"channel {channel}: {problem}")
        self.channel, self.problem = channel, problem


class NotGenuine(GatewayError):
    """A call failed verification; `why` is counted and never sent to the caller."""

    code = "unauthorized"

    def __init__(self, status: int, why: Why) -> None:
        super().__init__("the call is not genuine")
        self.status, self.why = status, why


# ---------------------------------------------------------------------------------- verification
@dataclass(frozen=True, slots=True)
class Verifier:
    """One recipe with its key: the shared secret, or the public key of ed25519."""

    recipe: Verify
    clock: Clock
    key: bytes = field(repr=False)

    def check(self, call: WebhookCall) -> None:
        """Raises NotGenuine if the call fails verification, and for every other error."""
        wanted = self.recipe.header.lower()
        if not any(name == wanted for name, _ in call.headers):
            raise NotGenuine(self.recipe.missing_status, "missing")
        try:
            why = self._objection(call)
        except Exception as error:  # an error that a forged call causes is a refusal
            raise NotGenuine(self.recipe.wrong_status, "wrong") from error
        if why is not None:
            raise NotGenuine(self.recipe.wrong_status, why)

    def without_proof(self, headers: Headers) -> Headers:
        """Returns the headers without the proof, which an adapter must not see."""
        return tuple(one for one in headers if one[0] != self.recipe.header.lower())

    def dedupe_key(self, body: bytes) -> str:
        """Returns the digest of the body if the recipe identifies calls by it; empty if the ids of
        the messages are trusted."""
        return f"sha256:{hashlib.sha256(body).hexdigest()}" if self.recipe.dedupe == "body" else ""

    def _objection(self, call: WebhookCall) -> Why | None:
        recipe = self.recipe
        given = _single(call, recipe.header)
        stamp = _single(call, recipe.timestamp_header) if recipe.timestamp_header else ""
        if recipe.timestamp_header and not self._is_fresh(stamp):
            return "stale"
        text = _signed_text(recipe, stamp, self._id(call), call.body)
        proofs = given.split(" ") if recipe.several else [given]
        found = [one.removeprefix(recipe.prefix) for one in proofs if one.startswith(recipe.prefix)]
        if len(found) > MOST_SIGNATURES or not any(self._holds(text, one) for one in found):
            return "wrong"
        return None

    def _is_fresh(self, stamp: str) -> bool:
        if not _TIME.fullmatch(stamp):
            return False
        return abs(self.clock.now().timestamp() - int(stamp)) <= self.recipe.window_s

    def _id(self, call: WebhookCall) -> str:
        """Returns the id of a call; empty if the recipe has none. Raises ValueError for an id that
        holds a separator of the signed text, because the signature would then fit two readings of
        the same bytes."""
        if self.recipe.id_header is None:
            return ""
        text = _single(call, self.recipe.id_header)
        between = {part for part in _SIGNED.split(self.recipe.signs) if part and part[0] != "{"}
        if not _ID.fullmatch(text) or any(part in text for part in between):
            raise ValueError("the id is ambiguous")
        return text

    def _holds(self, text: bytes, proof: str) -> bool:
        recipe = self.recipe
        if recipe.type == "token":
            return hmac.compare_digest(proof.encode(), self.key)
        try:
            if recipe.type == "ed25519":
                return _is_signed_by(self.key, text, _decode(proof, recipe.encoding, 64))
            given = _decode(proof, recipe.encoding, hashlib.sha256().digest_size)
        except ValueError:  # malformed signature
            return False
        return hmac.compare_digest(given, hmac.digest(self.key, text, "sha256"))


def _single(call: WebhookCall, name: str) -> str:
    values = [value for given, value in call.headers if given == name.lower()]
    if len(values) != 1:
        raise ValueError(f"the header {name} must appear once")
    return values[0]


def _signed_text(recipe: Verify, stamp: str, id_: str, body: bytes) -> bytes:
    parts = {"{timestamp}": stamp.encode(), "{id}": id_.encode(), "{body}": body}
    return b"".join(parts.get(part, part.encode()) for part in _SIGNED.split(recipe.signs))


def verifier(description: Description, channel: ChannelDef, clock: Clock) -> Verifier:
    """Returns the verifier of the recipe that the channel's `config` selects. Raises ChannelRefused
    if the channel cannot verify its calls."""
    fitting = [one for one in description.recipes if _is_meant(one, channel)]
    if len(fitting) != 1:
        wanted = " or ".join(
            ", ".join(f'{name} = "{value}"' for name, value in one.when.items())
            for one in description.recipes
        )
        raise ChannelRefused(channel.name, f"config selects no verification; set {wanted}")
    key = _key(fitting[0], channel)
    if fitting[0].type == "ed25519":
        _is_signed_by(key, b"", bytes(64))  # loads the library before the first call
    return Verifier(fitting[0], clock, key)


def proofs(description: Description, channel: ChannelDef) -> frozenset[bytes]:
    """Returns the secrets and keys that verify a channel's calls. Two channels that share one could
    accept each other's calls. Raises ChannelRefused."""
    meant = [one for one in description.recipes if _is_meant(one, channel)]
    secrets = {secret_of(channel, one.secret).encode() for one in meant if one.secret}
    return frozenset(secrets | {_key(one, channel) for one in meant})


def _is_meant(recipe: Verify, channel: ChannelDef) -> bool:
    return all(channel.config.get(name) == value for name, value in recipe.when.items())


def secret_of(channel: ChannelDef, name: str) -> str:
    """Returns a secret of a channel. Raises ChannelRefused if it is missing, blank or too long."""
    found = next((one for one in channel.secrets if one.name == name), None)
    value = found.value.reveal() if found else ""
    if not value.strip() or len(value) > LONGEST_SECRET:
        state = "is blank or too long" if found else "is missing"
        problem = f"secret {name!r} {state}; set it in [channels.{channel.name}] secrets"
        raise ChannelRefused(channel.name, problem)
    return value


def _key(recipe: Verify, channel: ChannelDef) -> bytes:
    """Raises ChannelRefused."""
    if recipe.type == "ed25519":
        return _public_key(recipe, channel)
    value = secret_of(channel, recipe.secret or "")
    if recipe.type == "token" or recipe.secret_form == "text":
        return value.encode()
    try:
        key = _from_base64(value.removeprefix(WHSEC))
    except ValueError:
        key = b""
    if not value.startswith(WHSEC) or not key:
        problem = f"secret {recipe.secret!r} must be {WHSEC} followed by base64"
        raise ChannelRefused(channel.name, problem)
    return key


def _public_key(recipe: Verify, channel: ChannelDef) -> bytes:
    value = channel.config.get(recipe.key or "")
    is_hex = isinstance(value, str) and _HEX_KEY.fullmatch(value)
    raw = bytes.fromhex(str(value)) if is_hex else bytes(32)
    if int.from_bytes(raw, "little") & _Y in _SMALL:
        problem = f"config.{recipe.key} must be the public key: 64 hexadecimal digits"
        raise ChannelRefused(channel.name, problem)
    return raw


def _is_signed_by(key: bytes, text: bytes, signature: bytes) -> bool:
    # slow to import, and most gateways have no channel that needs it
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (  # noqa: PLC0415
        Ed25519PublicKey,
    )

    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, text)
    except InvalidSignature:
        return False
    return True


def _decode(text: str, encoding: str, size: int) -> bytes:
    """Decodes a signature in its one valid form; hex may have either case. Raises ValueError."""
    raw = bytes.fromhex(text) if encoding == "hex" else _from_base64(text)
    if len(raw) != size or (encoding == "hex" and len(text) != 2 * size):
        raise ValueError("wrong length of a signature")
    return raw


def _from_base64(text: str) -> bytes:
    """Raises ValueError for base64 that is not canonical."""
    raw = b64decode(text, validate=True)
    if b64encode(raw).decode() != text:
        raise ValueError("not canonical base64")
    return raw


def sign_headers(
    recipe: Verify, key: str, headers: Mapping[str, str], body: bytes, *, now: datetime
) -> dict[str, str]:
    """Returns the headers of a call signed as by a platform. `key` is the secret, or the seed of an
    ed25519 key in hex."""
    proven = {name.lower(): value for name, value in headers.items()}
    stamp = id_ = ""
    if recipe.timestamp_header is not None:
        stamp = proven.setdefault(recipe.timestamp_header.lower(), str(int(now.timestamp())))
    if recipe.id_header is not None:
        id_ = proven.setdefault(recipe.id_header.lower(), "simulated")
    proof = _sign(recipe, key, _signed_text(recipe, stamp, id_, body))
    return {**proven, recipe.header.lower(): recipe.prefix + proof}


def _sign(recipe: Verify, key: str, text: bytes) -> str:
    if recipe.type == "token":
        return key
    if recipe.type == "ed25519":
        # slow to import, and only simulated platforms need it
        from cryptography.hazmat.primitives.asymmetric.ed25519 import (  # noqa: PLC0415
            Ed25519PrivateKey,
        )

        raw = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(key)).sign(text)
    else:
        is_text = recipe.secret_form == "text"
        secret = key.encode() if is_text else _from_base64(key.removeprefix(WHSEC))
        raw = hmac.digest(secret, text, "sha256")
    return raw.hex() if recipe.encoding == "hex" else b64encode(raw).decode()


# ---------------------------------------------------------------------------------- calls
@dataclass(frozen=True, slots=True)
class Challenger:
    """Answers the question in a query by which the platform checks the address."""

    challenge: Challenge
    secret: str = field(repr=False)

    def answer(self, query: Sequence[tuple[str, str]]) -> str:
        """Returns the answer to a question. Raises NotGenuine if the secret is wrong."""
        given = dict(query)
        asked = self.challenge
        is_whole = len(given) == len(query) and asked.answer in given
        is_meant = all(given.get(name) == value for name, value in asked.expects.items())
        is_right = hmac.compare_digest(given.get(asked.given, "").encode(), self.secret.encode())
        if not (is_right and is_whole and is_meant):
            raise NotGenuine(403, "wrong")
        return given[asked.answer]


@dataclass(frozen=True, slots=True)
class WebhookAddress:
    """The webhook address of one channel."""

    channel: OpenChannel
    recipe: Webhook
    verifier: Verifier
    challenger: Challenger | None

    @property
    def largest_body(self) -> int:
        return min(self.recipe.max_body_bytes, LARGEST_BODY)

    def matches(self, call: WebhookCall) -> bool:
        asks = () if self.challenger is None else (self.challenger.challenge.method,)
        is_known = call.method in {*self.recipe.methods, *asks}
        return is_known and any(_fits(one, call.path) for one in self.recipe.paths)

    async def receive(self, call: WebhookCall) -> WebhookAnswer:
        """Verifies a call and accepts its messages. Raises NotGenuine, and as OpenChannel.receive."""
        if self.challenger is not None and call.method == self.challenger.challenge.method:
            text = self.challenger.answer(_parameters(call.query))
            kind = (("content-type", "text/plain; charset=utf-8"),)
            return WebhookAnswer(200, kind, text.encode())
        self.verifier.check(call)
        headers, key = (
            self.verifier.without_proof(call.headers),
            self.verifier.dedupe_key(call.body),
        )
        what = (call.body, headers, call.method, call.path, call.query)
        reply = await self.channel.receive(Received("webhook", *what, key=key))
        self.channel.health.record_success("in")
        return _answer(reply)


def webhook_address(channel: OpenChannel, recipe: Webhook, clock: Clock) -> WebhookAddress:
    """Returns the address of a channel. Raises ChannelRefused if it cannot verify its calls."""
    settings, asked = channel.settings, recipe.challenge
    challenger = Challenger(asked, secret_of(settings, asked.secret)) if asked else None
    checks = verifier(channel.adapter.description, settings, clock)
    return WebhookAddress(channel, recipe, checks, challenger)


@dataclass(slots=True)
class WebhookEndpoint:
    """Implements the Webhooks port."""

    audit: Audit
    clock: Clock
    addresses: dict[str, WebhookAddress] = field(default_factory=dict)
    coming: set[str] = field(default_factory=set)  # channels that are not open yet
    _recurrences: Recurrences = field(default_factory=Recurrences)

    def largest_body(self, channel: str) -> int | None:
        found = self.addresses.get(channel)
        if found is None:
            return LARGEST_BODY if channel in self.coming else None
        return found.largest_body

    async def receive(self, call: WebhookCall) -> WebhookAnswer:
        found = self.addresses.get(call.channel)
        if call.channel in self.coming:
            return NOT_YET
        if found is None or not found.matches(call):
            return NOT_HERE
        if len(call.body) > found.largest_body:
            return WebhookAnswer(413)
        health = found.channel.health
        try:
            return await found.receive(call)
        except NotGenuine as error:
            health.count_refusal(error.why)
            self._note(call.channel, error.why)
            return WebhookAnswer(error.status)
        except AdapterFailed:
            health.count_refusal("unreadable")
            return WebhookAnswer(500)
        except (Busy, StoreUnavailable) as error:
            health.count_refusal("unavailable")
            wait = str(max(1, round(error.retry_after_s)))
            return WebhookAnswer(503, (("retry-after", wait),))

    def _note(self, channel: str, why: str) -> None:
        at = self.clock.now()
        times = self._recurrences.worth(f"{channel} {why}", at)
        if times:
            extra = {"channel": channel, "why": why, "times": times}
            log.warning("webhook_refused", extra=extra)
            event = AuditEvent(at, "webhook.refused", channel, {"why": why, "times": times})
            self.audit.append_soon(event)


def _fits(pattern: str, path: str) -> bool:
    """True if a path matches a pattern, in which `*` is any one segment."""
    wanted, given = pattern.strip("/").split("/"), path.removeprefix("/").split("/")
    return len(wanted) == len(given) and all(
        want == one or (want == "*" and one != "") for want, one in zip(wanted, given, strict=True)
    )


def _parameters(query: str) -> list[tuple[str, str]]:
    """Raises NotGenuine."""
    try:
        return parse_qsl(query, keep_blank_values=True, max_num_fields=MOST_PARAMETERS)
    except ValueError as error:
        raise NotGenuine(403, "wrong") from error


def _answer(reply: HttpReply | None) -> WebhookAnswer:
    """Returns the adapter's reply as an answer; of its headers only the content type is used."""
    if reply is None:
        return WebhookAnswer()
    kinds = [value for name, value in reply.headers.items() if name.lower() == "content-type"]
    headers = tuple(("content-type", one) for one in kinds[:1] if _CONTENT_TYPE.fullmatch(one))
    status = reply.status if 200 <= reply.status <= 599 else 500
    return WebhookAnswer(status, headers, b"" if status in _BODILESS else reply.body.encode())
