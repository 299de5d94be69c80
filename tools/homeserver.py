"""A real Synapse on loopback with users, for tools/synapse.py."""

import hashlib
import hmac
import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from urllib.parse import quote

Json = Any
BOT = "@exogate:localhost"
AS_TOKEN, HS_TOKEN = "as-token-of-a-try", "hs-token-of-a-try"
SHARED_SECRET = "registers people"
GENEROUS = {"per_second": 1000, "burst_count": 1000}


def ask(
    method: str, url: str, body: Json = None, headers: Mapping[str, str] | None = None
) -> tuple[int, Json]:
    """Returns the status and the JSON of the answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {**(headers or {})}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=40) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read() or b"null")


@dataclass
class Person:
    base: str
    user_id: str
    token: str
    since: str = ""
    seen: list[Json] = field(default_factory=list)
    number: int = 0

    def ask(self, method: str, path: str, body: Json = None) -> Json:
        headers = {"authorization": f"Bearer {self.token}", "content-type": "application/json"}
        status, answer = ask(method, f"{self.base}/_matrix/client/v3{path}", body, headers)
        if status != 200:
            raise SystemExit(f"{self.user_id}: {method} {path}: {status} {answer}")
        return answer

    def room(self, *invite: str, is_direct: bool = False) -> str:
        asked = {"invite": invite, "is_direct": is_direct, "preset": "trusted_private_chat"}
        return str(self.ask("POST", "/createRoom", asked)["room_id"])

    def say(self, room: str, text: str, **content: Json) -> str:
        self.number += 1
        said = {"msgtype": "m.text", "body": text, **content}
        path = f"/rooms/{quote(room)}/send/m.room.message/{self.number}"
        return str(self.ask("PUT", path, said)["event_id"])

    def wait_for(
        self, what: str, wanted: Callable[[Json], bool], *, within_s: float = 30.0
    ) -> Json:
        """Returns and removes the first unread event that is `wanted`."""
        end = monotonic() + within_s
        while monotonic() < end:
            for event in self.seen:
                if wanted(event):
                    self.seen.remove(event)
                    return event
            self._sync()
        kinds = [(event["type"], event["content"]) for event in self.seen[-5:]]
        raise SystemExit(f"{self.user_id} waited in vain for {what}; last there was {kinds}")

    def answer(self, room: str, part: str = "", **options: Any) -> Json:
        def wanted(event: Json) -> bool:
            mine = event["room_id"] == room and event.get("sender") == BOT
            return mine and part in event["content"].get("body", "")

        return self.wait_for(f"an answer with {part!r}", wanted, **options)

    def answers(self, room: str) -> list[str]:
        """Returns all answers so far, without edits."""
        mine = (e for e in self.seen if e["room_id"] == room and e.get("sender") == BOT)
        said = (e["content"] for e in mine if e["type"] == "m.room.message")
        return [one["body"] for one in said if "m.new_content" not in one]

    def _sync(self) -> None:
        query = f"?timeout=2000&since={self.since}" if self.since else "?timeout=0"
        answer = self.ask("GET", "/sync" + query)
        self.since = answer["next_batch"]
        for room, told in answer.get("rooms", {}).get("join", {}).items():
            events = told["timeline"]["events"] + told["ephemeral"]["events"]
            self.seen += [{**event, "room_id": room} for event in events]


@dataclass
class Homeserver:
    base: str

    def person(self, name: str) -> Person:
        url = f"{self.base}/_synapse/admin/v1/register"
        nonce = ask("GET", url)[1]["nonce"]
        signed = "\0".join((nonce, name, "password", "notadmin")).encode()
        mac = hmac.new(SHARED_SECRET.encode(), signed, hashlib.sha1).hexdigest()
        asked = {"nonce": nonce, "username": name, "password": "password", "mac": mac}
        _, made = ask("POST", url, asked | {"admin": False})
        return Person(self.base, made["user_id"], made["access_token"])


@contextmanager
def homeserver(env: Path, folder: Path, port: int, gateway: str) -> Iterator[Homeserver]:
    """Runs Synapse from `env`; it pushes events in rooms with the bot to `gateway`."""
    config = folder / "homeserver.yaml"  # JSON is valid YAML
    config.write_text(json.dumps(_config(folder, port)))
    (folder / "appservice.yaml").write_text(json.dumps(_registration(gateway)))
    (folder / "log.yaml").write_text(json.dumps(_logging(folder)))
    base = [str(env / "bin" / "python"), "-m", "synapse.app.homeserver", "-c", str(config)]
    subprocess.run([*base, "--generate-keys"], check=True, cwd=folder)
    with subprocess.Popen(base, cwd=folder) as process:
        try:
            _wait(f"http://127.0.0.1:{port}/health", process)
            yield Homeserver(f"http://127.0.0.1:{port}")
        finally:
            process.terminate()


def _config(folder: Path, port: int) -> Json:
    limited = ("message", "registration", "joins", "invites")
    listener = {"port": port, "bind_addresses": ["127.0.0.1"], "type": "http", "tls": False}
    return {
        "server_name": "localhost",
        "listeners": [listener | {"resources": [{"names": ["client"]}]}],
        "database": {"name": "sqlite3", "args": {"database": str(folder / "synapse.db")}},
        "media_store_path": str(folder / "media"),
        "signing_key_path": str(folder / "signing.key"),
        "log_config": str(folder / "log.yaml"),
        "report_stats": False,
        "trusted_key_servers": [],
        "registration_shared_secret": SHARED_SECRET,
        "macaroon_secret_key": "of a try",
        "form_secret": "of a try",
        "app_service_config_files": [str(folder / "appservice.yaml")],
        **{
            f"rc_{name}": GENEROUS
            if name in {"message", "registration"}
            else dict.fromkeys(("local", "remote", "per_room", "per_user", "per_issuer"), GENEROUS)
            for name in limited
        },
    }


def _registration(gateway: str) -> Json:
    return {
        "id": "exogate",
        "url": gateway,
        "as_token": AS_TOKEN,
        "hs_token": HS_TOKEN,
        "sender_localpart": "exogate",
        "rate_limited": False,
        "namespaces": {"users": [{"exclusive": True, "regex": BOT}]},
    }


def _logging(folder: Path) -> Json:
    handler = {"class": "logging.FileHandler", "filename": str(folder / "synapse.log")}
    root = {"level": "INFO", "handlers": ["file"]}
    return {"version": 1, "handlers": {"file": handler}, "root": root}


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    end = monotonic() + 60
    while monotonic() < end:
        if process.poll() is not None:
            raise SystemExit("Synapse ended; see synapse.log in its folder")
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            sleep(0.2)
    raise SystemExit(f"nothing answered at {url}")
