"""Tries the Matrix adapter on a real homeserver. It is run by hand and takes half a minute.

python -m tools.synapse --env DIR            the adapter alone, in a minimal host
python -m tools.synapse --env DIR --gateway  the whole gateway with the demo model

DIR is a separate virtual environment: python -m venv DIR && DIR/bin/pip install matrix-synapse==1.163.2
"""

import argparse
import json
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from time import monotonic, sleep

from tests.plugins.running import Guest
from tools.homeserver import (
    AS_TOKEN,
    BOT,
    HS_TOKEN,
    Homeserver,
    Json,
    Person,
    ask,
    homeserver,
)

ROOT = Path(__file__).parent.parent
CLI = [sys.executable, "-m", "gateway.cli.main"]
GATEWAY, SYNAPSE = 17218, 18018


def done(what: str) -> None:
    print(f"✓ {what}", flush=True)


def check(is_so: object, what: str) -> None:
    if not is_so:
        raise SystemExit(f"✗ {what}")
    done(what)


# ------------------------------------------------------------------------------ the adapter alone
@dataclass
class Host:
    """Calls the adapter and sends its requests."""

    api_base: str
    guest: Guest = field(default_factory=lambda: Guest.load(ROOT / "plugins/matrix/tool.wasm"))
    state: str = ""
    messages: list[Json] = field(default_factory=list)
    bodies: list[str] = field(default_factory=list)
    failing: int = 0  # number of calls that are answered with 500

    @property
    def given(self) -> Json:
        return {"config": {"user_id": BOT, "api_base": self.api_base}, "api_base": self.api_base}

    def receive(self, path: str, token: str | None, body: str) -> tuple[int, str]:
        if token != f"Bearer {HS_TOKEN}":
            return 403, "{}"
        self.bodies.append(body)
        if self.failing:
            self.failing -= 1
            return 500, "{}"
        event = {"path": path, "body": body, "state": self.state, **self.given}
        parsed = self._call("parse-incoming", event)
        self.state = parsed.get("state", self.state)
        threading.Thread(target=self._answer, args=[parsed["messages"]]).start()
        return 200, parsed["reply"]["body"]

    def send(self, do: str, key: str, message: Json, **more: Json) -> list[Json]:
        reply = {"do": do, "key": key, "peer": message["peer"], "answer": message["answer"]}
        reply |= {"thread": message.get("thread"), "reply_to": message["platform_id"]}
        reply |= {"is_group": message["kind"] == "group", **self.given, **more}
        return [self._fetch(one) for one in self._call("format-outgoing", reply)["requests"]]

    def _answer(self, messages: list[Json]) -> None:
        for message in messages:
            number = len(self.messages)
            self.messages.append(message)
            self.send("typing", "", message)
            self.send("send", f"key{number}", message, text=f"**{number}**: {message['text']}")

    def _fetch(self, request: Json) -> Json:
        headers = {
            k: v.replace("${secret:as_token}", AS_TOKEN) for k, v in request["headers"].items()
        }
        status, answer = ask(
            request["method"], request["url"], json.loads(request["body"]), headers
        )
        if status != 200:
            raise SystemExit(f"{request['url']}: {status} {answer}")
        return answer

    def _call(self, export: str, given: Json) -> Json:
        did, text = self.guest.run({"call": {"export": export, "input": given}})
        if not did:
            raise SystemExit(f"{export} refused: {text}")
        return json.loads(text)


@contextmanager
def listening(host: Host) -> Iterator[None]:
    class Door(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"])).decode()
            status, answer = host.receive(self.path, self.headers["authorization"], body)
            self.send_response(status)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            with suppress(BrokenPipeError):  # the homeserver has ended
                self.wfile.write(answer.encode())

        def log_message(self, *_: object) -> None:
            """Logs nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", GATEWAY), Door)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield
    server.shutdown()


def adapter_alone(synapse: Homeserver, host: Host) -> None:
    ada, bob = synapse.person("ada"), synapse.person("bob")
    room = ada.room(BOT, is_direct=True)
    ada.answer(room, "invited you")
    done("an invitation is answered, after joining")
    ada.say(room, "hello *there*")
    ada.wait_for(
        "a typing sign", lambda event: event["type"] == "m.typing" and event["content"]["user_ids"]
    )
    said = ada.answer(room, "hello")["content"]
    check(host.messages[-1]["kind"] == "direct", "the room is a direct chat")
    check(said["formatted_body"].startswith("<strong>1</strong>: hello <em>there</em>"), "as HTML")
    _sent_twice(ada, room, host)
    _grown(ada, bob, room, host)
    _in_a_room(ada, bob, host)
    host.failing = 2
    before = len(host.bodies)
    ada.say(room, "despite two failures")
    ada.answer(room, "despite two failures")
    check(len(host.bodies) >= before + 3, "what was refused twice is sent again")
    largest = "line <&>\n" * 1_700
    ada.say(room, "large")
    ada.answer(room, "large")
    host.send("send", "large", host.messages[-1], text=largest)
    check(ada.answer(room, "line <&>")["content"]["body"] == largest, "a text of 15 KB, whole")
    event_id = host.send("send", "draft", host.messages[-1], text="a draft")[-1]["event_id"]
    host.send("edit", "final", host.messages[-1], text=largest, edits=event_id)
    edit = ada.answer(room, "* line")["content"]
    check(edit["m.new_content"]["body"] == largest, "and as an edit")


def _sent_twice(ada: Person, room: str, host: Host) -> None:
    ids = [host.send("send", "same-key", host.messages[-1], text="once")[0] for _ in range(2)]
    check(ids[0] == ids[1], "the same key twice is one event")
    ada.answer(room, "once")
    edited = host.send(
        "edit", "other-key", host.messages[-1], text="twice", edits=ids[0]["event_id"]
    )
    replaced = ada.answer(room, "* twice")
    check(replaced["event_id"] == edited[0]["event_id"], "an edit")
    check(replaced["content"]["m.relates_to"]["event_id"] == ids[0]["event_id"], "of that event")


def _grown(ada: Person, bob: Person, room: str, host: Host) -> None:
    ada.ask("POST", f"/rooms/{room}/invite", {"user_id": bob.user_id})
    bob.ask("POST", f"/join/{room}", {})
    ada.say(room, "among three")
    ada.answer(room, "among three")
    check(host.messages[-1]["kind"] == "group", "with a third person it is a direct chat no longer")


def _in_a_room(ada: Person, bob: Person, host: Host) -> None:
    room = ada.room(BOT, bob.user_id)
    bob.ask("POST", f"/join/{room}", {})
    ada.answer(room, "invited you")
    pill = f'<a href="https://matrix.to/#/{BOT}">Exo</a>: hi'
    root = bob.say(room, "Exo: hi", formatted_body=pill, **{"m.mentions": {"user_ids": [BOT]}})
    said = ada.answer(room, ": hi")["content"]
    heard = host.messages[-1]
    check((heard["text"], heard["mentions_me"]) == ("hi", True), "a mention, and what is said")
    check(said["m.relates_to"]["m.in_reply_to"]["event_id"] == root, "answered as a reply")
    bob.say(room, "deep", **{"m.relates_to": {"rel_type": "m.thread", "event_id": root}})
    thread = ada.answer(room, "deep")["content"]["m.relates_to"]
    check((thread["rel_type"], thread["event_id"]) == ("m.thread", root), "a thread is kept to")
    check(host.messages[-1]["mentions_me"] is False, "what mentions nobody mentions nobody")
    for odd in ({"formatted_body": 5}, {"info": [], "msgtype": "m.image"}, {"m.relates_to": "x"}):
        bob.say(room, "odd", **odd)
    bob.say(room, "after odd ones")
    ada.answer(room, "after odd ones")
    done("odd events keep nobody waiting")


# ------------------------------------------------------------------------------- the whole gateway
CONFIG = f"""
config_version = 1
[gateway]
port = {GATEWAY}
[agent]
provider = "demo"
max_tokens = 30000
tools = ["echo"]
[[plugins]]
name = "echo"
path = "bundled:echo"
[[plugins]]
name = "matrix"
path = "bundled:matrix"
capabilities = ["http:http://127.0.0.1:{SYNAPSE}"]
[channels.matrix]
plugin = "matrix"
secrets = {{ as_token = "{AS_TOKEN}", hs_token = "{HS_TOKEN}" }}
config = {{ user_id = "{BOT}", api_base = "http://127.0.0.1:{SYNAPSE}" }}
groups."*" = {{}}
"""


@contextmanager
def gateway(folder: Path) -> Iterator[list[str]]:
    """Runs a gateway, and yields the beginning of its command line."""
    config = folder / "config.toml"
    config.write_text(CONFIG)
    cli = [*CLI, "-c", str(config), "--data-dir", str(folder / "data")]
    with subprocess.Popen([*cli, "run"], cwd=ROOT) as process:
        try:
            _wait(cli, process)
            yield cli
        finally:
            process.send_signal(signal.SIGTERM)


def _wait(cli: list[str], process: subprocess.Popen[bytes]) -> None:
    end = monotonic() + 60
    while subprocess.run([*cli, "status"], cwd=ROOT, capture_output=True, check=False).returncode:
        if process.poll() is not None or monotonic() > end:
            raise SystemExit("the gateway does not start")
        sleep(0.5)


def _verified() -> None:
    url = f"http://127.0.0.1:{GATEWAY}/webhooks/matrix/_matrix/app/v1/transactions/0"
    given: tuple[dict[str, str], ...] = (
        {},
        {"authorization": "Bearer other"},
        {"authorization": f"Bearer {HS_TOKEN}"},
    )
    answers = [ask("PUT", url, {"events": []}, headers) for headers in given]
    check([status for status, _ in answers] == [401, 403, 200], "only the homeserver is believed")
    check(answers[-1][1] == {}, "and answered as it wants to be")


def whole(synapse: Homeserver, folder: Path) -> None:
    ada = synapse.person("ada")
    with gateway(folder) as cli:
        _verified()
        room = ada.room(BOT, is_direct=True)
        told = ada.answer(room, "pair approve")["content"]["body"]
        code = re.search(r"\b[A-Z2-9]{4}-[A-Z2-9]{4}\b", told)
        if code is None:
            raise SystemExit(f"✗ no code in {told!r}")
        done("a stranger is told a code, after joining")
        subprocess.run([*cli, "pair", "approve", code[0], "--owner"], cwd=ROOT, check=True)
        ada.say(room, "hello")
        ada.answer(room, "scripted demo")
        done("a message is answered")
        ada.say(room, "/help")
        ada.answer(room, "/new")
        done("a command is answered")
        text = "\n\n".join(f"Paragraph {number} of a long one." for number in range(1_000))
        ada.say(room, f"echo: {text}")
        last = ada.answer(room, "Paragraph 999 ")["content"]["body"]
        parts = [*ada.answers(room), last]
        check(_is_said(text, parts), "a long answer comes in parts, and is whole")
        _by_name(ada)
    ada.say(room, "hello from before the start")
    with gateway(folder):
        ada.answer(room, "scripted demo", within_s=120)
        done("what was said while the gateway was away is answered once it is back")


def _by_name(ada: Person) -> None:
    room = ada.room(BOT)
    ada.answer(room)
    ada.say(room, "hello among ourselves")
    asked = ada.say(room, "exogate: hello", **{"m.mentions": {"user_ids": [BOT]}})
    said = ada.answer(room, "Hello! I am the scripted demo")["content"]
    check(
        said["m.relates_to"]["m.in_reply_to"]["event_id"] == asked, "a room is heard by name alone"
    )


def _is_said(text: str, answers: list[str]) -> bool:
    """True if the text consists of the answers, in order."""
    rest = text
    for part in answers:
        if rest.startswith(part):
            rest = rest[len(part) :].lstrip()
    return rest == ""


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--env", type=Path, required=True)
    options.add_argument("--gateway", action="store_true")
    given = options.parse_args()
    url = f"http://127.0.0.1:{GATEWAY}" + ("/webhooks/matrix" if given.gateway else "")
    with tempfile.TemporaryDirectory() as name:
        start = partial(homeserver, given.env.resolve(), Path(name), SYNAPSE)
        if given.gateway:
            with start(url) as synapse:
                whole(synapse, Path(name))
        else:
            host = Host(f"http://127.0.0.1:{SYNAPSE}")
            with listening(host), start(url) as synapse:
                adapter_alone(synapse, host)


if __name__ == "__main__":
    main()
