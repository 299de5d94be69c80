"""Descriptions of adapters with a socket or a poll, as the bundled ones write them."""

import json
from typing import TypeVar

from gateway.channels.adapter_json import read_description
from gateway.channels.adapters import Description, Poll, Socket

Way = TypeVar("Way", Poll, Socket)

DISCORD_FRAMES = [
    {"when": {"op": 10}, "do": ["identify"], "keep": {"pace": "d.heartbeat_interval"}},
    {"when": {"op": 11}, "do": ["alive"]},
    {"when": {"op": 1}, "do": ["beat"]},
    {"when": {"op": 7}, "do": ["reconnect"]},
    {"when": {"op": 9, "d": True}, "do": ["reconnect"]},
    {"when": {"op": 9}, "do": ["forget", "reconnect"]},
    {
        "when": {"op": 0, "t": "READY"},
        "do": ["ready"],
        "keep": {"seq": "s", "session": "d.session_id", "again": "d.resume_gateway_url"},
    },
    {"when": {"op": 0, "t": "RESUMED"}, "do": ["ready"], "keep": {"seq": "s"}},
    {"when": {"op": 0, "t": "MESSAGE_CREATE"}, "do": ["event"], "keep": {"seq": "s"}},
    {"when": {"op": 0}, "keep": {"seq": "s"}},
]


def discord(url: str = "wss://gateway.discord.gg/?v=10&encoding=json") -> Description:
    return described(
        {
            "type": "socket",
            "url": url,
            "resume_url": "again",
            "frames": DISCORD_FRAMES,
            "heartbeat": {"frame": {"op": 1, "d": "{kept.seq}"}, "kept_ms": "pace"},
            "identify": {"op": 2, "d": {"token": "${secret:bot_token}", "intents": 37_377}},
            "resume": {
                "op": 6,
                "d": {
                    "token": "${secret:bot_token}",
                    "session_id": "{kept.session}",
                    "seq": "{kept.seq}",
                },
            },
            "fatal_codes": [4004, 4010, 4011, 4012, 4013, 4014],
            "fresh_codes": [4007, 4009],
        }
    )


def slack() -> Description:
    return described(
        {
            "type": "socket",
            "open": {
                "method": "POST",
                "url": "{api_base}/apps.connections.open",
                "headers": {"authorization": "Bearer ${secret:app_token}"},
            },
            "frames": [
                {"when": {"type": "hello"}, "do": ["ready"]},
                {"when": {"type": "disconnect"}, "do": ["renew"]},
                {"when": {"type": "events_api"}, "do": ["event"]},
            ],
            "acknowledge": {"envelope_id": "{frame.envelope_id}"},
        }
    )


def telegram() -> Description:
    return described(
        {
            "type": "poll",
            "request": {
                "url": "{api_base}/bot${secret:token}/getUpdates?offset={state}&timeout=50"
            },
            "setup": {"url": "{api_base}/bot${secret:token}/deleteWebhook"},
        }
    )


def described(transport: dict[str, object]) -> Description:
    text = {
        "channel": "chat",
        "transports": [transport],
        "outbound": {
            "ok": "ok",
            "error": "description",
            "retry_after": ["parameters.retry_after", "header:retry-after"],
        },
        "api_base": "https://api.example",
    }
    return read_description(json.dumps(text))


def way(description: Description, kind: type[Way]) -> Way:
    transport = description.transports[0]
    assert isinstance(transport, kind)
    return transport
