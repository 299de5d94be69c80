"""Host functions do what was granted, for the person on whose behalf, and say no to the rest."""

import base64
import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic_core import to_json

from gateway.config.sections import parse_capability
from gateway.domain.errors import Denied, StoreUnavailable
from gateway.domain.ids import Secret
from gateway.domain.plugins import PluginDef, PluginSecret
from gateway.domain.ports import Fetched, HostFunction, HttpFailed, PluginSpace
from gateway.sandbox.host_functions import Host, HostDeps
from tests.fakes.clock import FakeClock
from tests.fakes.fetch import FakeFetch, page
from tests.fakes.plugin_store import FakePlugins
from tests.fakes.ports import PartOfToolStore
from tests.fakes.sandbox import means

Answer = tuple[str, ...]


def host(
    *grants: str, given: HostDeps | None = None, plugin: str = "shop", person: str | None = "ann"
) -> Host:
    capabilities = tuple(map(parse_capability, grants))
    return Host(given or means(), PluginDef(plugin, Path("shop.wasm"), capabilities), person)


def request(**fields: object) -> str:
    return json.dumps({"url": "https://example.com/", **fields})


async def test_each_function_answers_with_its_grant() -> None:
    given = means(clock=FakeClock())
    shop = host("host_function:clock", "host_function:random", "store:cart", given=given)

    assert await shop.answer("clock.now", []) == ("ok", "1767268800000")
    status, text = await shop.answer("random.bytes", ["8"])
    assert (status, len(bytes.fromhex(text))) == ("ok", 8)
    assert await shop.answer("store.get", ["cart", "k"]) == ("none", "")
    assert await shop.answer("store.set", ["cart", "k", "v"]) == ("ok", "")
    assert await shop.answer("store.get", ["cart", "k"]) == ("ok", "v")
    assert await shop.answer("store.list", ["cart", ""]) == ("ok", '["k"]')
    assert await shop.answer("store.delete", ["cart", "k"]) == ("ok", "")
    assert await shop.answer("store.list", ["cart", ""]) == ("ok", "[]")
    assert given.ledger.of("shop").granted == {
        "host_function:clock": 1,
        "host_function:random": 1,
        "store:cart": 6,
    }


async def test_for_a_run_that_may_be_another_gateways_nothing_is_done_any_more() -> None:
    store, fetch = FakePlugins(), FakeFetch()
    given = means(store=store, fetch=fetch)
    shop = replace(host("store:cart", "http:example.com", given=given), may_act=lambda: False)

    for function, arguments in (
        ("store.set", ["cart", "k", "v"]),
        ("http.request", [request(method="POST")]),
    ):
        status, why = await shop.answer(function, arguments)
        assert (status, "another gateway" in why) == ("err", True)

    assert await host("store:cart", given=given).answer("store.get", ["cart", "k"]) == ("none", "")
    assert fetch.asked == []


UNGRANTED: Mapping[str, tuple[str, list[str]]] = {
    "host_function:clock": ("clock.now", []),
    "host_function:random": ("random.bytes", ["8"]),
    "host_function:up": ("host.call", ["up", "x"]),
    "store:cart": ("store.get", ["cart", "k"]),
    "http:HOST": ("http.request", [request()]),
}


@pytest.mark.requirement("S-003-Plugin-13")
@pytest.mark.parametrize("capability", UNGRANTED)
async def test_without_the_grant_the_answer_says_no_and_is_counted(capability: str) -> None:
    function, arguments = UNGRANTED[capability]
    given = means()

    status, text = await host(given=given).answer(function, arguments)

    assert status == "err"
    assert text == f"shop is not granted {capability} (granted: nothing)"
    assert given.ledger.of("shop").denied == {capability: 1}
    assert given.ledger.of("shop").granted == {}


@pytest.mark.parametrize("verb", ["set", "delete"])
async def test_what_may_be_read_may_not_be_written(verb: str) -> None:
    given = means()
    shop = host("store:cart:ro", given=given)
    arguments = ["cart", "k", "v"][: 3 if verb == "set" else 2]

    status, text = await shop.answer(f"store.{verb}", arguments)

    assert (status, text) == ("err", "shop is not granted store:cart (granted: store:cart:ro)")
    assert (await shop.answer("store.get", ["cart", "k"]))[0] == "none"
    assert given.ledger.of("shop").denied == {"store:cart": 1}


@pytest.mark.requirement("S-003-Plugin-11")
async def test_nobody_reads_what_another_keeps() -> None:
    given = means()
    await host("store:cart", given=given).answer("store.set", ["cart", "k", "ann's"])
    shared = host("store:cart:shared", given=given, person="bob")

    for other in (
        host("store:cart", given=given, person="bob"),
        host("store:cart", given=given, person=None),
        host("store:cart", given=given, plugin="thief"),
        shared,
    ):
        assert await other.answer("store.get", ["cart", "k"]) == ("none", "")
        assert await other.answer("store.list", ["cart", ""]) == ("ok", "[]")
    await shared.answer("store.set", ["cart", "k", "all"])
    everyone = host("store:cart:shared", given=given, person="eve")
    assert await everyone.answer("store.get", ["cart", "k"]) == ("ok", "all")
    assert await host("store:cart", given=given).answer("store.get", ["cart", "k"]) == (
        "ok",
        "ann's",
    )


ESCAPES = [
    "",
    ".",
    "..",
    "cart/../till",
    "CART",
    "cart\0",
    "cart:shared",
    "*",
    "till",
    "cart ",
    "ｃart",
]


@pytest.mark.requirement("S-003-Plugin-11")
@pytest.mark.parametrize("namespace", ESCAPES)
async def test_a_namespace_is_granted_exactly_or_not_at_all(namespace: str) -> None:
    for verb, texts in {"get": ["k"], "set": ["k", "v"], "list": [""], "delete": ["k"]}.items():
        status, text = await host("store:cart").answer(f"store.{verb}", [namespace, *texts])
        assert status == "err"
        assert "is not granted store:" in text


async def test_keys_that_look_like_paths_are_only_keys() -> None:
    store = FakePlugins()
    shop = host("store:cart", given=means(store=store))

    for key in ("../till/k", "/etc/passwd", "till\\k", "%2e%2e", "thief:cart:k"):
        assert await shop.answer("store.set", ["cart", key, "v"]) == ("ok", "")

    assert list(store.spaces) == [PluginSpace("shop", "cart", "ann")]


async def test_a_full_store_tells_the_guest() -> None:
    shop = host("store:cart")

    status, text = await shop.answer("store.set", ["cart", "k", "x" * 65_537])
    assert (status, "65536 bytes" in text) == ("err", True)
    for number in range(1000):
        assert (await shop.answer("store.set", ["cart", str(number), ""]))[0] == "ok"
    status, text = await shop.answer("store.set", ["cart", "more", ""])
    assert (status, "at most 1000 keys" in text) == ("err", True)


async def test_a_request_goes_out_as_it_was_meant() -> None:
    secret = PluginSecret("key", Secret("swordfish"), frozenset())
    fetch = FakeFetch(lambda _: Fetched(201, (("x", "y"),), b'{"a":1}'))
    plugin = PluginDef(
        "shop", Path("shop.wasm"), (parse_capability("http:example.com"),), secrets=(secret,)
    )
    asked = request(method="post", headers={"A": "b"}, body="hé", timeout_ms=1500)

    answer = await Host(means(fetch=fetch), plugin).answer("http.request", [asked])

    head = {"status": 201, "headers": {"x": "y"}, "body": "body"}
    assert answer == ("ok", to_json(head).decode(), '{"a":1}')
    ((ask, leave),) = fetch.asked
    assert (ask.method, ask.url, ask.headers) == ("POST", "https://example.com/", (("A", "b"),))
    assert (ask.body, ask.timeout_s) == ("hé".encode(), 1.5)
    assert (leave.origins, leave.secrets) == (plugin.origins, (secret,))


async def test_bytes_that_are_no_text_come_and_go_as_base64() -> None:
    large = b"\xff\xfe" * 1_000_001
    fetch = FakeFetch(lambda _: page(large))
    shop = host("http:example.com", given=means(fetch=fetch))

    answer = await shop.answer("http.request", [request(body_base64="/wA=")])

    assert (answer[0], json.loads(answer[1])["body"]) == ("ok", "body_base64")
    assert base64.b64decode(answer[2], validate=True) == large
    assert fetch.asked[0][0].body == b"\xff\0"


ODD_REQUESTS = {
    "": "EOF",
    "[]": "a request must be a JSON object",
    "{}": "a request must be a JSON object",
    '{"url": 1}': "a request must be a JSON object",
    request(method=1): '"method" must be a string',
    request(headers=[]): None,  # nothing, written oddly
    request(headers=["a"]): '"headers" must be',
    request(headers={"a": 1}): '"headers" must be',
    request(body=1): "only one may be set",
    request(body="a", body_base64="YQ=="): "only one may be set",
    request(body_base64="!"): "not base64",
    request(body_base64=[]): "only one may be set",
    request(timeout_ms="1"): '"timeout_ms" a number',
    request(timeout_ms=-5): None,
    request(timeout_ms=10**400): None,
    request(timeout_ms=1e308): None,
    '{"url": "https://example.com/", "timeout_ms": NaN}': None,
    '{"url": "\\ud800"}': "hex escape",
}


@pytest.mark.parametrize("asked", ODD_REQUESTS)
async def test_an_odd_request_is_answered_in_words(asked: str) -> None:
    fetch = FakeFetch()
    told = ODD_REQUESTS[asked]

    status, text, *_ = await host("http:example.com", given=means(fetch=fetch)).answer(
        "http.request", [asked]
    )

    assert status == ("ok" if told is None else "err")
    assert (told or "") in text
    assert len(fetch.asked) == (told is None)
    assert all(0 < ask.timeout_s <= 600 for ask, _ in fetch.asked)


@pytest.mark.parametrize(
    ("said", "text", "denied"),
    [
        (Denied("not allowed to reach https://x"), "shop: not allowed to reach https://x", 1),
        (HttpFailed("network", "example.com is gone"), "example.com is gone", 0),
    ],
)
async def test_what_the_network_says_reaches_the_guest(
    said: Denied | HttpFailed, text: str, denied: int
) -> None:
    given = means(fetch=FakeFetch(lambda _: said))
    asked = request(url="https://u:p@x:8443/secret/path?token=1")

    answer = await host("http:example.com", given=given).answer("http.request", [asked])

    assert answer == ("err", text)
    assert given.ledger.of("shop").denied == ({"http:x:8443": 1} if denied else {})


async def shout(text: str, plugin: PluginDef) -> str:
    return f"{plugin.name}: {text.upper()}"


async def refuse(text: str, plugin: PluginDef) -> str:
    raise Denied("not today")


async def fail(text: str, plugin: PluginDef) -> str:
    raise KeyError("/srv/private/" + text)


FUNCTIONS: Mapping[str, HostFunction] = {"shout": shout, "refuse": refuse, "fail": fail}


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("shout", ("ok", "shop: HEY")),
        ("refuse", ("err", "not today")),
        ("fail", ("err", "the host function failed; the log of the gateway has the reason")),
        ("gone", ("err", "no host function gone is registered")),
        ("clock", ("err", "no host function clock is registered")),
    ],
)
async def test_a_function_of_the_operator_harms_only_its_caller(name: str, answer: Answer) -> None:
    shop = host(f"host_function:{name}", given=means(functions=FUNCTIONS))

    assert await shop.answer("host.call", [name, "hey"]) == answer


async def test_a_function_is_given_to_those_who_were_granted_it() -> None:
    shop = host("host_function:shout", given=means(functions=FUNCTIONS))

    status, text = await shop.answer("host.call", ["refuse", "hey"])

    assert (status, "not granted host_function:refuse" in text) == ("err", True)


class Broken(FakePlugins, PartOfToolStore):
    async def get(self, space: PluginSpace, key: str) -> str | None:
        raise StoreUnavailable("the disk is full")


async def test_a_store_that_fails_is_an_answer() -> None:
    shop = host("store:cart", given=means(store=Broken()))

    assert await shop.answer("store.get", ["cart", "k"]) == ("err", "the disk is full")


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        ("", []),
        ("shell.run", ["ls"]),
        ("store.drop", ["cart"]),
        ("store.set", ["cart"]),
        ("store.get", ["cart", "k", "more"]),
        ("http.request", []),
        ("host.call", ["x"]),
        ("random.bytes", ["-1"]),
        ("random.bytes", ["many"]),
    ],
)
async def test_what_no_guest_can_ask_is_refused(function: str, arguments: list[str]) -> None:
    grants = ("store:cart", "http:example.com", "host_function:x", "host_function:random")

    assert (await host(*grants).answer(function, arguments))[0] == "err"


async def test_randomness_is_bounded() -> None:
    _, text = await host("host_function:random").answer("random.bytes", ["4294967295"])

    assert len(text) == 2 * 64 * 1024


@pytest.mark.parametrize(
    ("level", "number"), [("debug", 10), ("info", 20), ("warn", 30), ("error", 40), ("odd", 20)]
)
def test_what_a_guest_logs_is_one_plain_line(
    caplog: pytest.LogCaptureFixture, level: str, number: int
) -> None:
    with caplog.at_level(logging.DEBUG):
        host().log(level, "a\x1b[2J\r\nERROR b\u202e\x9b")

    (record,) = caplog.records
    assert (record.levelno, record.getMessage()) == (number, "plugin_log")
    said = vars(record)["said"]
    assert (vars(record)["plugin"], said.isprintable()) == ("shop", True)
    assert "\\x1b[2J\\r\\nERROR b" in said


@pytest.mark.parametrize("url", ["https://x#1", "HTTPS://X./?a#b", "https://x/path#/", "https://x"])
async def test_a_place_is_counted_under_one_name_however_it_is_written(url: str) -> None:
    given = means()

    assert (await host("http:x", given=given).answer("http.request", [request(url=url)]))[0] == "ok"

    assert given.ledger.of("shop").granted == {"http:x": 1}
