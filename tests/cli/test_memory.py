"""`exogate memory` asks the running gateway what it knows, and has it forget."""

import json

from tests.cli.conftest import Shell

PERSON = "demo:websocket:local:memory"


def told(shell: Shell, *said: str) -> None:
    for text in said:
        assert shell("chat", "-m", text, "--peer", "memory").code == 0


def test_what_was_said_is_found_explained_looked_back_at_and_forgotten(shell: Shell) -> None:
    told(shell, "My dog is called Luna.", "I live in NYC.", "I moved to LA.", "thanks")

    whose = ("--person", PERSON)
    found = shell("--json", "memory", "search", "dog", "--kind", "fact", *whose).json["results"]
    why = shell("memory", "why", found[0]["id"]).out
    history = shell("memory", "history", "user", "location", *whose).out.splitlines()
    now = shell("--json", "memory", "as-of", "2100-01-01", *whose).json["facts"]
    never = shell("--json", "memory", "as-of", "2100-01-01", "--known-at", "2020-01-01", *whose)
    near = shell("memory", "neighbours", "Luna", "--hops", "1", *whose).out
    exported = [json.loads(line) for line in shell("memory", "export", *whose).out.splitlines()]

    assert found[0]["fact"]["object"] == "Luna"
    assert "My dog is called Luna" in why
    head, first, last = (line.split() for line in history)
    assert head[:4] == ["ID", "SUBJECT", "PREDICATE", "OBJECT"]
    assert first[1:4] == ["user", "location", "NYC"]
    assert last[1:4] == ["user", "location", "LA"]
    assert head[-2:] == ["SUPERSEDED", "AT"]
    assert (first[-1] != "-", last[-1]) == (True, "-")
    assert {one["object"] for one in now} == {"Luna", "LA"}
    assert never.json == {"facts": []}
    assert near.splitlines()[1].split()[1:4] == ["user", "dog_name", "Luna"]
    assert {one["object"] for one in exported} == {"Luna", "NYC", "LA"}
    assert all(one["sources"][0]["quote"] for one in exported)


def test_forgetting_only_counts_until_it_is_meant(shell: Shell) -> None:
    told(shell, "My cat is called Tom.", "thanks")
    (tom,) = shell("--json", "memory", "search", "cat", "--kind", "fact", "--person", PERSON).json[
        "results"
    ]

    counted = shell("memory", "forget", tom["id"])
    left = shell("memory", "search", "cat", "--kind", "fact", "--person", PERSON).out
    forgotten = shell("--json", "memory", "forget", tom["id"], "--yes").json
    gone = shell("memory", "why", tom["id"])
    all_of_it = shell("memory", "forget", "--session", PERSON, "--yes")

    assert "1 facts would be erased" in counted.out
    assert "Tom" in left
    assert (forgotten["count"], forgotten["dry_run"]) == (1, False)
    assert gone.code == 1
    assert "not found" in gone.err
    assert "are erased" in all_of_it.out
    assert shell("memory", "export", "--person", PERSON).out == ""


def test_whoever_is_not_named_is_the_one_at_the_command_line(shell: Shell) -> None:
    assert shell("chat", "-m", "My fish is called Wanda.").code == 0
    assert shell("chat", "-m", "thanks").code == 0

    assert "Wanda" in shell("memory", "search", "fish").out
    assert "Wanda" not in shell("memory", "search", "fish", "--person", PERSON).out


def test_without_a_name_it_is_said_whose_memory_is_shown_and_which_others_there_are(
    shell: Shell,
) -> None:
    told(shell, "My cat is called Mia.", "thanks")
    for number in range(7):
        assert shell("chat", "-m", "hi", "--peer", f"crowd{number}").code == 0
    verbs = [
        ("search", "Mia"),
        ("history", "user"),
        ("as-of", "today"),
        ("neighbours", "Mia"),
        ("export",),
    ]

    said = [shell("memory", *verb) for verb in verbs]
    listed = shell("--json", "memory", "history", "user")
    named = shell("memory", "search", "Mia", "--kind", "fact", "--person", PERSON)
    fact_id = named.out.splitlines()[1].split()[0]
    why, counted = shell("memory", "why", fact_id), shell("memory", "forget", fact_id)

    for one in (*said, listed):
        assert one.code == 0
        assert "the memory of demo:websocket:local:main" in one.err
        assert one.err.count("demo:websocket:local:crowd") == 5
        assert "exogate session list" in one.err
        assert "crowd" not in one.out
    assert isinstance(listed.json["facts"], list)
    assert (named.err, "Mia" in named.out) == ("", True)
    assert ["fact", "scope", PERSON] in [line.split() for line in why.out.splitlines()]
    assert f"in the memory of {PERSON}" in counted.err


def test_what_was_learned_today_is_so_today(shell: Shell) -> None:
    told(shell, "My bird is called Pip.", "thanks")
    learned = shell("--json", "memory", "search", "Pip", "--kind", "fact", "--person", PERSON)
    day = learned.json["results"][0]["fact"]["learned_at"][:10]

    for when in ("today", "now", day):
        assert "Pip" in shell("memory", "as-of", when, "--person", PERSON).out
        known = shell("memory", "as-of", when, "--known-at", when, "--person", PERSON)
        assert "Pip" in known.out
    assert "Pip" not in shell("memory", "as-of", "2020-01-01", "--person", PERSON).out
    assert shell("memory", "as-of", "someday", "--person", PERSON).code == 1


def test_what_makes_no_sense_is_wrong_usage(shell: Shell) -> None:
    assert shell("memory", "forget").code == 2
    assert shell("memory", "forget", "f_1", "--session", PERSON).code == 2
    assert shell("memory", "search", "x", "--session", PERSON, "--person", PERSON).code == 2
    assert "is not a session key" in shell("memory", "export", "--person", "nonsense").err
    assert shell("memory", "as-of", "soon").code == 1


def test_without_a_gateway_it_says_so(alone: Shell) -> None:
    assert alone("memory", "search", "x").code == 69
