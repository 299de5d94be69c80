"""What each platform calls a gateway with when somebody writes: signed as it signs."""

import hashlib
import hmac
import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gateway.cli.configuration import known_names

SECRET = "bWFkZSBmb3IgdGhpcyB0ZXN0IG9ubHkh"  # with the channel's name behind it: each has its own
TOKEN = "123456:token-of-the-test"
SEED = bytes(range(32))
LATE_S = 20 * 60  # then Discord's answer is no longer one to the interaction
DISCORD_EPOCH_MS = 1_420_070_400_000
PHONE = "106540352242922"
SENDING = ("bot_token", "access_token", "as_token", "reply_token")  # leave in requests


@dataclass(frozen=True)
class Question:
    """Who asks is known by the number; `at` are seconds since 1970."""

    channel: str
    kind: str
    number: int
    at: int

    @property
    def name(self) -> str:
        return f"{self.channel}{self.kind}{self.number}z"


@dataclass(frozen=True)
class Call:
    headers: Mapping[str, str]
    body: bytes
    method: str = "POST"
    path: str = ""


def _mac(channel: str, *parts: bytes) -> str:
    return hmac.digest(f"{SECRET}{channel}".encode(), b"".join(parts), hashlib.sha256).hex()


def _telegram(asked: Question) -> Call:
    person = {"id": asked.number, "is_bot": False, "first_name": "Ada"}
    chat = {"id": asked.number, "type": "private"}
    said = {"message_id": 1, "date": asked.at, "text": asked.name, "from": person, "chat": chat}
    body = json.dumps({"update_id": asked.number, "message": said}).encode()
    return Call({"x-telegram-bot-api-secret-token": f"{SECRET}telegram"}, body)


def _slack(asked: Question) -> Call:
    ts = f"{asked.at}.{asked.number:06}"
    said = {"type": "message", "channel": f"D{asked.number}", "channel_type": "im"}
    event = {**said, "user": f"U{asked.number}", "text": asked.name, "ts": ts}
    body = json.dumps({"type": "event_callback", "team_id": "T1", "event": event}).encode()
    at = str(asked.at)
    proof = f"v0={_mac('slack', f'v0:{at}:'.encode(), body)}"
    return Call({"x-slack-request-timestamp": at, "x-slack-signature": proof}, body)


def _discord(asked: Question) -> Call:
    """Every other interaction is an old one, whose answer is a message to its channel."""
    made_ms = (asked.at - LATE_S * (asked.number % 2)) * 1000
    call = {
        "id": str((made_ms - DISCORD_EPOCH_MS << 22) + asked.number),
        "type": 2,
        "application_id": "7",
        "token": f"token{asked.number}",
        "channel_id": str(asked.number),
        "channel": {"id": str(asked.number), "type": 1},
        "context": 1,
        "user": {"id": str(asked.number), "username": "ada"},
        "data": {"name": "ask", "type": 1, "options": [{"type": 3, "value": asked.name}]},
    }
    body, at = json.dumps(call).encode(), str(asked.at)
    proof = Ed25519PrivateKey.from_private_bytes(SEED).sign(at.encode() + body).hex()
    return Call({"x-signature-ed25519": proof, "x-signature-timestamp": at}, body)


def _whatsapp(asked: Question) -> Call:
    said = {"from": str(asked.number), "id": f"wamid.{asked.number}", "type": "text"}
    value = {
        "metadata": {"phone_number_id": PHONE},
        "messages": [{**said, "timestamp": str(asked.at), "text": {"body": asked.name}}],
    }
    entry = {"changes": [{"field": "messages", "value": value}]}
    body = json.dumps({"object": "whatsapp_business_account", "entry": [entry]}).encode()
    return Call({"x-hub-signature-256": f"sha256={_mac('whatsapp', body)}"}, body)


def _matrix(asked: Question) -> Call:
    event = {
        "type": "m.room.message",
        "room_id": f"!r{asked.number}:test",
        "sender": f"@p{asked.number}:test",
        "event_id": f"${asked.number}",
        "origin_server_ts": asked.at * 1000,
        "content": {"msgtype": "m.text", "body": asked.name},
    }
    path = f"/_matrix/app/v1/transactions/{asked.number}"
    body = json.dumps({"events": [event]}).encode()
    return Call({"authorization": f"Bearer {SECRET}matrix"}, body, "PUT", path)


def _webhook(asked: Question) -> Call:
    body = json.dumps({"sender": f"p{asked.number}", "text": asked.name}).encode()
    name, at = f"msg_{asked.number}", str(asked.at)
    mac = hmac.digest(b64decode(SECRET), f"{name}.{at}.".encode() + body, hashlib.sha256)
    proof = f"v1,{b64encode(mac).decode()}"
    return Call({"webhook-id": name, "webhook-timestamp": at, "webhook-signature": proof}, body)


CALLERS: dict[str, Callable[[Question], Call]] = {
    "telegram": _telegram,
    "slack": _slack,
    "discord": _discord,
    "whatsapp": _whatsapp,
    "matrix": _matrix,
    "webhook": _webhook,
}
_CONFIG = {
    "discord": f', public_key = "{Ed25519PrivateKey.from_private_bytes(SEED).public_key().public_bytes_raw().hex()}"',
    "whatsapp": f', phone_number_id = "{PHONE}"',
    "matrix": ', user_id = "@exogate:test"',
    "webhook": ', scheme = "standard", reply_url = "/answers"',
}
_SECRETS = {
    "telegram": {"bot_token": TOKEN, "webhook_secret": f"{SECRET}telegram"},
    "slack": {"bot_token": TOKEN, "signing_secret": f"{SECRET}slack"},
    "discord": {"bot_token": TOKEN},
    "whatsapp": {"access_token": TOKEN, "app_secret": f"{SECRET}whatsapp", "verify_token": SECRET},
    "matrix": {"as_token": TOKEN, "hs_token": f"{SECRET}matrix"},
    "webhook": {"secret": f"whsec_{SECRET}", "reply_token": TOKEN},
}


def configured(base: str, on_unknown_send: str) -> str:
    """All of them, with `base` as the place where their platforms are."""
    return "".join(_channel(name, base, on_unknown_send) for name in CALLERS)


def _channel(name: str, base: str, on_unknown_send: str) -> str:
    hosts = f', hosts = ["{base}"]'
    secrets = "\n".join(
        f'{secret} = {{ value = "{value}"{hosts if secret in SENDING else ""} }}'
        for secret, value in _SECRETS[name].items()
    )
    return f"""
[[plugins]]
name = "{name}"
path = "bundled:{name}"
capabilities = {json.dumps([*known_names().bundled[name].needs, f"http:{base}"])}
[channels.{name}]
plugin = "{name}"
transport = "webhook"
dm_policy = "open"
on_unknown_send = "{on_unknown_send}"
config = {{ api_base = "{base}/{name}"{_CONFIG.get(name, "")} }}
groups."*" = {{ require_mention = false }}
[channels.{name}.secrets]
{secrets}
"""
