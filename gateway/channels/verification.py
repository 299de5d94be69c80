"""Whether a call is genuine: an adapter's recipe over the raw bytes, before anybody reads them."""

import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from gateway.channels.adapters import Challenge, Description, Verify
from gateway.domain.channels import ChannelDef, WebhookCall
from gateway.domain.errors import GatewayError
from gateway.domain.ports import Clock

MOST_SIGNATURES = 16  # of one call
LONGEST_SECRET = 1_024
WHSEC = "whsec_"
_TIME = re.compile(r"[0-9]{1,12}")
_ID = re.compile(r"[!-~]{1,256}")
SIGNED = re.compile(r"(\{timestamp\}|\{id\}|\{body\})")
_HEX_KEY = re.compile(r"[0-9A-Fa-f]{64}")

_Y = 2**255 - 1  # of a point's 256 bits those that are its y
_P = 2**255 - 19
_OF_ORDER_8 = 0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7
# The points of small order, however they are written: to such a key, nothing but zeros for instance,
# anybody finds a signature.
_SMALL = frozenset({0, 1, _P - 1, _P, _P + 1, _OF_ORDER_8, _P - _OF_ORDER_8})

Headers = tuple[tuple[str, str], ...]
Proves = Callable[[bytes, str], bool]  # what was signed, and one signature as it was written
Why = Literal["missing", "stale", "wrong"]


class ChannelRefused(GatewayError):
    """A channel is not started; the text names it and says why and what would help."""

    code = "channel_refused"

    def __init__(self, channel: str, problem: str) -> None:
        super().__init__(f"channel {channel}: {problem}")
        self.channel, self.problem = channel, problem


class NotGenuine(GatewayError):
    """A call that nobody can vouch for; `why` is counted, and never told to whoever called."""

    code = "unauthorized"

    def __init__(self, status: int, why: Why) -> None:
        super().__init__("the call is not genuine")
        self.status, self.why = status, why


@dataclass(frozen=True, slots=True)
class Verifier:
    """One recipe with its key."""

    recipe: Verify
    clock: Clock
    proves: Proves

    def check(self, call: WebhookCall) -> None:
        """Raises NotGenuine, whatever else goes wrong on the way."""
        wanted = self.recipe.header.lower()
        if not any(name == wanted for name, _ in call.headers):
            raise NotGenuine(self.recipe.missing_status, "missing")
        try:
            why = self._objection(call)
        except Exception as error:
            raise NotGenuine(self.recipe.wrong_status, "wrong") from error
        if why is not None:
            raise NotGenuine(self.recipe.wrong_status, why)

    def unproving(self, headers: Headers) -> Headers:
        """Those that prove nothing: an adapter gets to see no other. What was signed may be seen."""
        return tuple(one for one in headers if one[0] != self.recipe.header.lower())

    def key(self, body: bytes) -> str:
        """What tells a genuine call from others; empty where its messages have ids to be trusted."""
        return f"sha256:{hashlib.sha256(body).hexdigest()}" if self.recipe.dedupe == "body" else ""

    def _objection(self, call: WebhookCall) -> Why | None:
        recipe = self.recipe
        given = _single(call, recipe.header)
        stamp = _single(call, recipe.timestamp_header) if recipe.timestamp_header else ""
        if recipe.timestamp_header and not self._is_fresh(stamp):
            return "stale"
        parts = {"{timestamp}": stamp.encode(), "{id}": self._id(call), "{body}": call.body}
        signed = b"".join(parts.get(part, part.encode()) for part in SIGNED.split(recipe.signs))
        proofs = given.split(" ") if recipe.several else [given]
        found = [one.removeprefix(recipe.prefix) for one in proofs if one.startswith(recipe.prefix)]
        if len(found) > MOST_SIGNATURES or not any(self._holds(signed, one) for one in found):
            return "wrong"
        return None

    def _is_fresh(self, stamp: str) -> bool:
        if not _TIME.fullmatch(stamp):
            return False
        return abs(self.clock.now().timestamp() - int(stamp)) <= self.recipe.window_s

    def _id(self, call: WebhookCall) -> bytes:
        """With nothing in it that stands between the parts of what is signed: else one signature
        would fit two ways to cut the same bytes."""
        if self.recipe.id_header is None:
            return b""
        text = _single(call, self.recipe.id_header)
        between = {part for part in SIGNED.split(self.recipe.signs) if part and part[0] != "{"}
        if not _ID.fullmatch(text) or any(part in text for part in between):
            raise ValueError("an id that could be cut in another way")
        return text.encode()

    def _holds(self, signed: bytes, proof: str) -> bool:
        try:
            return self.proves(signed, proof)
        except ValueError:  # not even written as a signature
            return False


def _single(call: WebhookCall, name: str) -> str:
    values = [value for given, value in call.headers if given == name.lower()]
    if len(values) != 1:
        raise ValueError("a header that has to be there once")
    return values[0]


# -------------------------------------------------------------------------------- from a recipe
def verifier(description: Description, channel: ChannelDef, clock: Clock) -> Verifier:
    """Of the one recipe that the channel's `config` calls for. Raises ChannelRefused: a channel
    that nobody can verify is never open."""
    fitting = [one for one in description.recipes if _is_meant(one.when, channel.config)]
    if len(fitting) != 1:
        wanted = " or ".join(
            ", ".join(f'{name} = "{value}"' for name, value in one.when.items())
            for one in description.recipes
        )
        raise ChannelRefused(channel.name, f"how calls are verified is not said; set {wanted}")
    recipe = fitting[0]
    if recipe.type == "ed25519":
        return Verifier(
            recipe, clock, _by_public_key(_public_key(recipe, channel), recipe.encoding)
        )
    value = secret_of(channel, recipe.secret or "")
    if recipe.type == "token":
        return Verifier(recipe, clock, lambda _, proof: _same(proof, value))
    key = _key(recipe, channel, value)
    return Verifier(recipe, clock, _by_mac(key, recipe.encoding))


def proofs(description: Description, channel: ChannelDef) -> frozenset[bytes]:
    """By what its callers prove who they are: with one in common, each of two channels may take the
    other's calls, whatever header they stand in. Raises ChannelRefused."""
    found: set[bytes] = set()
    for recipe in description.recipes:
        if not _is_meant(recipe.when, channel.config):
            continue
        if recipe.type == "ed25519":
            found.add(_public_key(recipe, channel))
            continue
        value = secret_of(channel, recipe.secret or "")
        found |= {value.encode(), _key(recipe, channel, value)}
    return frozenset(found)


def _is_meant(when: Mapping[str, str], config: Mapping[str, object]) -> bool:
    return all(config.get(name) == value for name, value in when.items())


def secret_of(channel: ChannelDef, name: str) -> str:
    """Raises ChannelRefused for one that is not there or blank."""
    found = next((one for one in channel.secrets if one.name == name), None)
    value = found.value.reveal() if found else ""
    if not value.strip() or len(value) > LONGEST_SECRET:
        state = "is blank or too long" if found else "is missing"
        problem = f"secret {name!r} {state}; set it in [channels.{channel.name}] secrets"
        raise ChannelRefused(channel.name, problem)
    return value


def _key(recipe: Verify, channel: ChannelDef, value: str) -> bytes:
    if recipe.secret_form == "text":
        return value.encode()
    try:
        key = from_base64(value.removeprefix(WHSEC))
    except ValueError:
        key = b""
    if not value.startswith(WHSEC) or not key:
        problem = f"secret {recipe.secret!r} has to be {WHSEC} with base64 behind it"
        raise ChannelRefused(channel.name, problem)
    return key


def _public_key(recipe: Verify, channel: ChannelDef) -> bytes:
    value = channel.config.get(recipe.key or "")
    is_hex = isinstance(value, str) and _HEX_KEY.fullmatch(value)
    raw = bytes.fromhex(str(value)) if is_hex else bytes(32)
    if int.from_bytes(raw, "little") & _Y in _SMALL:
        problem = f"config.{recipe.key} has to be the public key: 64 hexadecimal digits"
        raise ChannelRefused(channel.name, problem)
    return raw


# ------------------------------------------------------------------------------------ signatures
def _same(proof: str, value: str) -> bool:
    return hmac.compare_digest(proof.encode(), value.encode())


def _by_mac(key: bytes, encoding: str) -> Proves:
    def proves(signed: bytes, proof: str) -> bool:
        given = _decoded(proof, encoding, hashlib.sha256().digest_size)
        return hmac.compare_digest(given, hmac.digest(key, signed, "sha256"))

    return proves


def _by_public_key(raw: bytes, encoding: str) -> Proves:
    # most gateways have no channel that needs it
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (  # noqa: PLC0415
        Ed25519PublicKey,
    )

    key = Ed25519PublicKey.from_public_bytes(raw)

    def proves(signed: bytes, proof: str) -> bool:
        try:
            key.verify(_decoded(proof, encoding, 64), signed)
        except InvalidSignature:
            return False
        return True

    return proves


def _decoded(text: str, encoding: str, size: int) -> bytes:
    """One spelling for one signature, but for the case of hex. Raises ValueError."""
    raw = bytes.fromhex(text) if encoding == "hex" else from_base64(text)
    if len(raw) != size or (encoding == "hex" and len(text) != 2 * size):
        raise ValueError("not as long as a signature")
    return raw


def from_base64(text: str) -> bytes:
    """Raises ValueError for a spelling that is not the one of those bytes."""
    raw = b64decode(text, validate=True)
    if b64encode(raw).decode() != text:
        raise ValueError("not canonical base64")
    return raw


# ------------------------------------------------------------------------------------- challenges
@dataclass(frozen=True, slots=True)
class Challenger:
    """Answers a question in the query that proves to the platform that we are meant."""

    challenge: Challenge
    secret: str

    def answer(self, query: Sequence[tuple[str, str]]) -> str:
        """What is to be said back. Raises NotGenuine."""
        given = dict(query)
        asked = self.challenge
        is_whole = len(given) == len(query) and asked.answer in given
        is_meant = all(given.get(name) == value for name, value in asked.expects.items())
        if not _same(given.get(asked.given, ""), self.secret) or not is_whole or not is_meant:
            raise NotGenuine(403, "wrong")
        return given[asked.answer]
