"""What a plugin is granted, as those who ask for it see it."""

from pathlib import Path

import pytest

from gateway.config.sections import parse_capability
from gateway.domain.ids import Secret
from gateway.domain.plugins import Origin, PluginDef, PluginSecret, StoreGrant


def plugin(*capabilities: str) -> PluginDef:
    return PluginDef("p", Path("p.wasm"), tuple(parse_capability(text) for text in capabilities))


def test_grants_are_found_by_their_kind() -> None:
    granted = plugin("http:a.example", "store:x", "host_function:clock", "http:http://b.example")

    assert granted.origins == {Origin("https", "a.example", 443), Origin("http", "b.example", 80)}
    assert granted.functions == {"clock"}


def test_without_a_grant_nothing_is_allowed() -> None:
    assert not plugin().origins
    assert not plugin().functions
    assert plugin().store_grant("x") is None


@pytest.mark.requirement("S-003-Plugin-11")
def test_a_namespace_is_granted_by_its_very_name() -> None:
    granted = plugin("store:notes")

    assert granted.store_grant("notes") == StoreGrant("notes")
    assert granted.store_grant("note") is None
    assert granted.store_grant("notes:ro") is None


@pytest.mark.parametrize("grants", [("store:x:ro", "store:x"), ("store:x", "store:x:ro")])
def test_of_two_grants_of_a_namespace_the_wider_counts(grants: tuple[str, str]) -> None:
    assert plugin(*grants).store_grant("x") == StoreGrant("x")


def test_no_secret_is_shown() -> None:
    secret = PluginSecret("key", Secret("hunter2"), frozenset())

    assert "hunter2" not in repr(PluginDef("p", Path("p.wasm"), secrets=(secret,)))
