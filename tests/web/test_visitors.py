"""Addresses are compared by value, and only trusted proxies are believed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.web.wire.connections import IpAddress, VisitorReader, parse_address, parse_hop

LOOPBACK = ("127.0.0.1", 1)


@pytest.mark.parametrize("text", ["127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1"])
def test_a_loopback_address_is_known_in_every_spelling(text: str) -> None:
    address = parse_address(text)

    assert address is not None
    assert address.is_loopback


@pytest.mark.parametrize(
    "text", ["127.evil.com", "localhost", "127.0.0.1.evil.com", "0x7f.1", "", "127.0.0.1:80"]
)
def test_what_only_looks_like_an_address_is_none(text: str) -> None:
    assert parse_address(text) is None


@pytest.mark.parametrize(
    ("headers", "is_local"),
    [
        ([], True),
        ([(b"sec-fetch-site", b"none")], True),
        ([(b"sec-fetch-site", b"cross-site")], False),
        ([(b"origin", b"http://127.0.0.1:7200")], False),
        ([(b"origin", b"null")], False),
        ([(b"x-forwarded-for", b"127.0.0.1")], False),
        ([(b"forwarded", b"for=127.0.0.1")], False),
        ([(b"x-real-ip", b"127.0.0.1")], False),
        ([(b"x-forwarded-for", b"")], False),
        ([(b"x-forwarded-proto", b"https")], False),
        ([(b"x-forwarded-whatever", b"1")], False),
        ([(b"via", b"1.1 proxy")], False),
        ([(b"cf-connecting-ip", b"127.0.0.1")], False),
    ],
)
def test_only_a_direct_program_on_this_machine_is_near(
    headers: list[tuple[bytes, bytes]], is_local: bool
) -> None:
    assert VisitorReader(()).read(headers, LOOPBACK, LOOPBACK).is_local is is_local


def test_a_peer_elsewhere_is_not_near() -> None:
    assert not VisitorReader(()).read([], ("10.0.0.7", 1), LOOPBACK).is_local
    assert not VisitorReader(()).read([], None, LOOPBACK).is_local


@pytest.mark.parametrize(
    ("hops", "client"),
    [
        (b"9.9.9.9", "9.9.9.9"),
        (b"127.0.0.1, 9.9.9.9", "9.9.9.9"),  # what the sender wrote comes first and is not believed
        (b"9.9.9.9, 10.0.0.1", "9.9.9.9"),  # a second proxy of ours
        (b"9.9.9.9:51234", "9.9.9.9"),
        (b"9.9.9.9:51234, 10.0.0.1:80", "9.9.9.9"),
        (b"[2001:db8::7]:51234", "2001:db8::7"),
        (b"[2001:db8::7]", "2001:db8::7"),
        (b"2001:db8::7", "2001:db8::7"),
        (b"[fe80::7%eth0]:51234", "fe80::7"),
        (b"fe80::7%eth0", "fe80::7"),
        (b"[::ffff:9.9.9.9]:51234", "9.9.9.9"),
        # What cannot be read counts as the proxy's that passed it on.
        (b"9.9.9.9, nonsense", "127.0.0.1"),
        (b"9.9.9.9, unknown, 10.0.0.1", "10.0.0.1"),
        (b"9.9.9.9, ", "127.0.0.1"),
        (b"9.9.9.9:", "127.0.0.1"),
        (b"9.9.9.9:65536", "127.0.0.1"),
        (b"9.9.9.9:8\xb2", "127.0.0.1"),
        (b"9.9.9.9%eth0", "127.0.0.1"),
        (b"[9.9.9.9]:80", "127.0.0.1"),
        (b"[2001:db8::7]80", "127.0.0.1"),
        (b"[2001:db8::7", "127.0.0.1"),
        (b"2001:db8::7]", "127.0.0.1"),
        (b"[2001:db8::7%]", "127.0.0.1"),
        (b"unix:", "127.0.0.1"),
        (b"[2001:db8::7%" + b"z" * 5_000 + b"]", "127.0.0.1"),
        (b"", "127.0.0.1"),
        (b"127.0.0.1", "127.0.0.1"),
        (b"10.0.0.1, 127.0.0.1", "10.0.0.1"),
    ],
)
def test_behind_a_trusted_proxy_the_last_foreign_hop_is_the_client(
    hops: bytes, client: str
) -> None:
    reception = VisitorReader(("127.0.0.1", "10.0.0.0/8"))

    visitor = reception.read([(b"x-forwarded-for", hops)], LOOPBACK, LOOPBACK)

    assert str(visitor.client) == client
    assert not visitor.is_local


@given(text=st.text(st.sampled_from("0123456789abf:.[]% ,x"), max_size=50))
def test_what_a_proxy_names_is_an_address_or_nothing(text: str) -> None:
    found = parse_hop(text)

    assert found is None or parse_hop(str(found)) == found


@given(address=st.ip_addresses(), port=st.integers(0, 65_535))
def test_an_address_is_the_same_with_its_port(address: IpAddress, port: int) -> None:
    bare = f"[{address}]" if address.version == 6 else str(address)

    assert parse_hop(f" {bare}:{port}") == parse_hop(str(address)) == parse_address(str(address))


@pytest.mark.parametrize("network", ["::ffff:10.0.0.0/104", "::ffff:10.0.0.1"])
def test_a_trusted_network_may_be_written_as_ipv6(network: str) -> None:
    hops = [(b"x-forwarded-for", b"9.9.9.9")]

    visitor = VisitorReader((network,)).read(hops, ("::ffff:10.0.0.1", 1), LOOPBACK)

    assert str(visitor.client) == "9.9.9.9"


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"x-real-ip", b"9.9.9.9")],
        [(b"forwarded", b"for=9.9.9.9")],
        [(b"x-forwarded-proto", b"https")],
        [(b"via", b"1.1 proxy")],
        [(b"x-forwarded-for", b"")],
        [(b"x-forwarded-for", b"127.0.0.1")],
        [(b"x-forwarded-for", b"127.0.0.1:51234")],
    ],
)
def test_what_a_trusted_proxy_brings_without_a_name_is_its_own_and_from_afar(
    headers: list[tuple[bytes, bytes]],
) -> None:
    visitor = VisitorReader(("127.0.0.1", "10.0.0.0/8")).read(headers, LOOPBACK, LOOPBACK)

    assert str(visitor.client) == "127.0.0.1"
    assert not visitor.is_local


def test_a_loopback_address_behind_a_trusted_proxy_is_not_near() -> None:
    hops = [(b"x-forwarded-for", b"127.0.0.1")]

    visitor = VisitorReader(("10.0.0.1",)).read(hops, ("10.0.0.1", 1), LOOPBACK)

    assert str(visitor.client) == "127.0.0.1"
    assert not visitor.is_local


def test_hops_from_an_unknown_proxy_are_not_believed() -> None:
    visitor = VisitorReader(("10.0.0.1",)).read(
        [(b"x-forwarded-for", b"127.0.0.1")], ("9.9.9.9", 1), LOOPBACK
    )

    assert str(visitor.client) == "9.9.9.9"
    assert visitor.is_proxied


def test_a_header_that_must_be_single_is_noticed_when_it_is_not() -> None:
    headers = [(b"host", b"a"), (b"host", b"b"), (b"x-other", b"1"), (b"x-other", b"2")]

    assert VisitorReader(()).read(headers, LOOPBACK, LOOPBACK).repeated == {"host"}
