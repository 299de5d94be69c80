"""The other side of verification: signs a call as a platform would, for platforms that are simulated."""

import hmac
from base64 import b64encode
from collections.abc import Mapping
from datetime import datetime

from gateway.channels.adapters import Verify
from gateway.channels.verification import SIGNED, WHSEC, from_base64


def signed(
    recipe: Verify, key: str, headers: Mapping[str, str], body: bytes, *, now: datetime
) -> dict[str, str]:
    """The headers, with those that prove who calls. `key` is the secret, or the seed of an ed25519
    key in hex."""
    proven = {name.lower(): value for name, value in headers.items()}
    parts = {"{body}": body, "{id}": b"", "{timestamp}": b""}
    if recipe.timestamp_header is not None:
        stamp = proven.setdefault(recipe.timestamp_header.lower(), str(int(now.timestamp())))
        parts["{timestamp}"] = stamp.encode()
    if recipe.id_header is not None:
        parts["{id}"] = proven.setdefault(recipe.id_header.lower(), "simulated").encode()
    text = b"".join(parts.get(part, part.encode()) for part in SIGNED.split(recipe.signs))
    proven[recipe.header.lower()] = recipe.prefix + _proof(recipe, key, text)
    return proven


def _proof(recipe: Verify, key: str, text: bytes) -> str:
    if recipe.type == "token":
        return key
    raw = _ed25519(key, text) if recipe.type == "ed25519" else _mac(recipe, key, text)
    return raw.hex() if recipe.encoding == "hex" else b64encode(raw).decode()


def _mac(recipe: Verify, key: str, text: bytes) -> bytes:
    is_text = recipe.secret_form == "text"
    raw = key.encode() if is_text else from_base64(key.removeprefix(WHSEC))
    return hmac.digest(raw, text, "sha256")


def _ed25519(seed: str, text: bytes) -> bytes:
    # only who simulates such a platform needs it
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (  # noqa: PLC0415
        Ed25519PrivateKey,
    )

    return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(seed)).sign(text)
