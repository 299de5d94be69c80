"""What plugins used and were denied is counted, and no plugin can make it large or ugly."""

from gateway.sandbox.ledger import MOST_DENIALS, OTHERS, Ledger


def test_uses_and_denials_are_counted_for_each_plugin() -> None:
    ledger = Ledger()
    ledger.used("a", "store:x")
    ledger.used("a", "store:x")
    ledger.denied("a", "store:y")
    ledger.used("b", "store:x")

    assert ledger.of("a").granted == {"store:x": 2}
    assert ledger.of("a").denied == {"store:y": 1}
    assert ledger.of("b").granted == {"store:x": 1}
    assert (ledger.of("c").granted, ledger.of("c").denied) == ({}, {})


def test_a_plugin_that_tries_everything_fills_nothing() -> None:
    ledger = Ledger()
    for number in range(10 * MOST_DENIALS):
        ledger.denied("a", f"store:{number}" + "x" * 1000)

    denied = ledger.of("a").denied
    assert len(denied) == MOST_DENIALS + 1
    assert denied[OTHERS] == 9 * MOST_DENIALS
    assert max(map(len, denied)) <= 200


def test_no_control_character_is_kept() -> None:
    ledger = Ledger()
    ledger.denied("a", "store:\x1b[2J\n\u202e")

    assert list(ledger.of("a").denied) == ["store:?[2J??"]
