"""What plugins used and were denied is counted, and no plugin can make it large or ugly."""

from gateway.sandbox.host_functions import MOST_NAMES, OTHERS, CapabilityUse


def test_uses_and_denials_are_counted_for_each_plugin() -> None:
    ledger = CapabilityUse()
    ledger.record_use("a", "store:x")
    ledger.record_use("a", "store:x")
    ledger.record_denial("a", "store:y")
    ledger.record_use("b", "store:x")

    assert ledger.of("a").granted == {"store:x": 2}
    assert ledger.of("a").denied == {"store:y": 1}
    assert ledger.of("b").granted == {"store:x": 1}
    assert (ledger.of("c").granted, ledger.of("c").denied) == ({}, {})


def test_a_plugin_that_tries_everything_fills_nothing() -> None:
    ledger = CapabilityUse()
    for number in range(10 * MOST_NAMES):
        ledger.record_denial("a", f"store:{number}" + "x" * 1000)

    denied = ledger.of("a").denied
    assert len(denied) == MOST_NAMES + 1
    assert denied[OTHERS] == 9 * MOST_NAMES
    assert max(map(len, denied)) <= 200


def test_no_control_character_is_kept() -> None:
    ledger = CapabilityUse()
    ledger.record_denial("a", "store:\x1b[2J\n\u202e")

    assert list(ledger.of("a").denied) == ["store:?[2J ?"]


def test_what_was_granted_fills_nothing_either() -> None:
    ledger = CapabilityUse()
    for number in range(10 * MOST_NAMES):
        ledger.record_use("a", f"http:{number}")

    assert len(ledger.of("a").granted) == MOST_NAMES + 1
