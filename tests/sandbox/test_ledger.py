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


def test_no_plugin_can_fill_the_counts_or_put_control_characters_in_them() -> None:
    ledger = CapabilityUse()
    ledger.record_denial("b", "store:\x1b[2J\n\u202e")
    for number in range(10 * MOST_NAMES):
        ledger.record_denial("a", f"store:{number}" + "x" * 1000)
        ledger.record_use("a", f"http:{number}")

    denied = ledger.of("a").denied
    assert len(denied) == len(ledger.of("a").granted) == MOST_NAMES + 1
    assert denied[OTHERS] == 9 * MOST_NAMES
    assert max(map(len, denied)) <= 200
    assert list(ledger.of("b").denied) == ["store:?[2J ?"]
