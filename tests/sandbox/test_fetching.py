"""HTTP for guests that do not speak our JSON: bytes in, bytes out, refusals as words."""

import base64
import json

from gateway.sandbox.calls import MOST_BODY_BYTES, GuestReply, core_engine, fetch, open_store
from tests.fakes.guests import call_of


def fetched(body: bytes | None, *answer: str) -> tuple[GuestReply | str, list[tuple[str, ...]]]:
    said: list[tuple[str, ...]] = []
    with open_store(core_engine(), call_of(said, lambda _asked: answer)):
        return fetch({"url": "https://a.example"}, body), said


def test_bytes_go_out_and_come_back_as_they_are() -> None:
    head = json.dumps({"status": 404, "headers": {"a": "b"}, "body": "body_base64"})

    reply, said = fetched(b"\xff", "ok", head, base64.b64encode(b"\xfe\x00").decode())

    assert reply == GuestReply(404, {"a": "b"}, b"\xfe\x00")
    assert json.loads(said[0][1])["body_base64"] == "/w=="


def test_a_refusal_is_told_in_the_hosts_words() -> None:
    assert fetched(None, "err", "not granted")[0] == "not granted"


def test_a_body_that_is_too_large_is_not_sent() -> None:
    reply, said = fetched(bytes(MOST_BODY_BYTES + 1), "ok", "{}")

    assert reply == "the body of a request is larger than 1024 KiB"
    assert said == []
