"""What may be granted: read strictly, written the one way, compared exactly."""

from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.sections import BadCapability, parse_capability
from gateway.domain.plugins import (
    Capability,
    FunctionGrant,
    HttpGrant,
    Origin,
    StoreGrant,
    canonical_host,
)

NAMES = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,63}", fullmatch=True)
LABELS = st.from_regex(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?", fullmatch=True)
HOSTS = st.one_of(
    st.lists(LABELS, min_size=1, max_size=3).map(".".join).filter(canonical_host),
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(str),
)
ORIGINS = st.builds(Origin, st.sampled_from(["http", "https"]), HOSTS, st.integers(1, 65_535))
CAPABILITIES: st.SearchStrategy[Capability] = st.one_of(
    ORIGINS.map(HttpGrant),
    st.builds(StoreGrant, NAMES, st.booleans(), st.booleans()),
    NAMES.map(FunctionGrant),
)
PIECES = st.lists(
    st.sampled_from(
        [
            *("http", "https", "store", "host_function", ":", "://", "/", "*", ".", "..", "@"),
            *("a", "A", "example.com", "127.0.0.1", "[::1]", "0x7f", "443", "65536", "0", "-", "_"),
            *("shared", "ro", " ", "\n", "\x00", "%", "?", "#", "é", "[", "]", "\\"),
        ]
    ),
    max_size=8,
).map("".join)


@pytest.mark.requirement("S-003-Plugin-09")
@pytest.mark.parametrize(
    ("text", "capability"),
    [
        ("http:api.example.com", HttpGrant(Origin("https", "api.example.com", 443))),
        ("http:API.Example.COM", HttpGrant(Origin("https", "api.example.com", 443))),
        ("http:https://a.example", HttpGrant(Origin("https", "a.example", 443))),
        ("http:https://a.example:443", HttpGrant(Origin("https", "a.example", 443))),
        ("http:https://a.example:8443", HttpGrant(Origin("https", "a.example", 8_443))),
        ("http:http://a.example", HttpGrant(Origin("http", "a.example", 80))),
        ("http:http://127.0.0.1:8080", HttpGrant(Origin("http", "127.0.0.1", 8_080))),
        ("http:[2001:DB8::0:1]", HttpGrant(Origin("https", "2001:db8::1", 443))),
        ("http:http://[::1]:80", HttpGrant(Origin("http", "::1", 80))),
        ("http:localhost", HttpGrant(Origin("https", "localhost", 443))),
        ("http:my_host", HttpGrant(Origin("https", "my_host", 443))),
        ("http:xn--bcher-kva.example", HttpGrant(Origin("https", "xn--bcher-kva.example", 443))),
        ("store:notes", StoreGrant("notes")),
        ("store:notes:ro", StoreGrant("notes", is_read_only=True)),
        ("store:notes:shared", StoreGrant("notes", is_shared=True)),
        ("store:notes:shared:ro", StoreGrant("notes", is_shared=True, is_read_only=True)),
        ("host_function:clock", FunctionGrant("clock")),
    ],
)
def test_what_is_granted_is_read(text: str, capability: Capability) -> None:
    assert parse_capability(text) == capability


HOSTILE = {
    "type": ["", ":", "::", "http", "store", "clock", "*", "filesystem:/", "env:HOME", "tool:x"],
    "spelling of the type": [
        " http:a.b",
        "HTTP:a.b",
        "http :a.b",
        "Store:x",
        "https:a.b",
        "\nhttp:a.b",
    ],
    "no host": [
        "http:",
        "http: ",
        "http:/",
        "http://",
        "http:https://",
        "http:https://:443",
        "http:.",
    ],
    "wildcard": [
        "http:*",
        "http:*.example.com",
        "http:a.*",
        "http:api?.example.com",
        "http:%",
        "http:.a.b",
    ],
    "a form of an address that only a resolver reads": [
        *("http:127.1", "http:2130706433", "http:0x7f.1", "http:0x7f000001", "http:017700000001"),
        *("http:127.0.0.01", "http:0", "http:1", "http:256.1.1.1", "http:1.2.3.4.5", "http:a.0x"),
        *("http:[::1", "http:::1", "http:[::1%eth0]", "http:[127.0.0.1]", "http:[]", "http:[::1]x"),
    ],
    "more than an origin": [
        *("http:a.b/", "http:a.b/path", "http:https://a.b/path", "http:a.b?x", "http:a.b#x"),
        *("http:user@a.b", "http:https://user:pw@a.b", "http:a.b:80@c.d", "http:GET https://a.b"),
        *(
            "http:a.b,c.d",
            "http:a.b c.d",
            "http:a.b\\c.d",
            "http:a.b;c.d",
            "http:a.b\x00",
            "http:a.b\n",
        ),
    ],
    "another scheme": [
        "http:ftp://a.b",
        "http:file:///etc/passwd",
        "http:ws://a.b",
        "http://a.b",
        "http:HTTPS:a.b",
    ],
    "a port beyond 1 to 65535": [
        *(
            "http:https://a.b:",
            "http:https://a.b:0",
            "http:https://a.b:65536",
            "http:https://a.b:-1",
        ),
        *(
            "http:https://a.b:+1",
            "http:https://a.b:8_0",
            "http:https://a.b: 80",
            "http:https://a.b:x",
        ),
        *(f"http:https://a.b:{'1' * 6_000}", "http:https://a.b:٣", "http:a.b:443"),
    ],
    "a name that is none": [
        *(
            "http:a..b",
            "http:a.b.",
            "http:-a.b",
            "http:a-.b",
            f"http:{'a' * 64}.b",
            f"http:{'a.' * 127}aa",
        ),
        *("http:bücher.example", "http:\uff41.b", "http:\u0131.b", "http:\u212a.b"),
    ],
    "a namespace that is none": [
        *(
            "store:",
            "store: ",
            "store:../b",
            "store:a/b",
            "store:A",
            "store:.a",
            "store:-a",
            "store:a b",
        ),
        *("store:a\x00", "store:a\n", "store:ä", f"store:{'a' * 65}", "store:*", "store:a%2f"),
    ],
    "a mark that is none": [
        *(
            "store:a:",
            "store:a:rw",
            "store:a:ro:",
            "store:a:ro:shared",
            "store:a:ro:ro",
            "store:a::ro",
        ),
        *("store:a:RO", "store:a: ro", "store:a:shared:shared", "store::ro"),
    ],
    "a function that is none": [
        *(
            "host_function:",
            "host_function:*",
            "host_function:A",
            "host_function:a:b",
            "host_function:a b",
        ),
        *(
            "host_function:a/b",
            "host_function:\n",
            f"host_function:{'a' * 65}",
            "host-function:clock",
        ),
    ],
}


@pytest.mark.requirement("S-003-Plugin-09")
@pytest.mark.parametrize(("why", "texts"), HOSTILE.items())
def test_nothing_else_is_granted(why: str, texts: list[str]) -> None:
    for text in texts:
        with pytest.raises(BadCapability) as refusal:
            parse_capability(text)
        assert refusal.value.problem, (why, text)


@pytest.mark.requirement("S-003-Plugin-09")
@given(CAPABILITIES)
def test_what_is_written_reads_as_the_same(capability: Capability) -> None:
    assert parse_capability(str(capability)) == capability


@given(st.one_of(PIECES, PIECES.map("http:{}".format), st.text()))
def test_what_is_read_is_written_in_one_way(text: str) -> None:
    try:
        capability = parse_capability(text)
    except BadCapability:
        return
    assert parse_capability(str(capability)) == capability
    assert str(parse_capability(str(capability))) == str(capability)
    assert str(capability).isascii()
    assert str(capability).isprintable()


@given(ORIGINS, ORIGINS)
def test_two_origins_are_written_alike_only_if_they_are_the_same(
    one: Origin, other: Origin
) -> None:
    assert (str(HttpGrant(one)) == str(HttpGrant(other))) == (one == other)


@given(st.ip_addresses())
def test_an_address_has_one_form(address: IPv4Address | IPv6Address) -> None:
    written = f"[{address.exploded.upper()}]" if address.version == 6 else str(address)

    assert canonical_host(written) == str(address)


@pytest.mark.requirement("S-003-Plugin-10")
def test_a_sub_domain_is_another_host() -> None:
    granted = parse_capability("http:example.com")

    assert granted != parse_capability("http:api.example.com")
    assert granted != parse_capability("http:http://example.com")
    assert granted != parse_capability("http:https://example.com:444")
    assert granted == parse_capability("http:EXAMPLE.com")
