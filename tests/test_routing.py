"""Routing: the highest tier that matches in every field, then the most specific, then the first."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.domain.agents import Address, Binding, MatchedBy
from gateway.domain.errors import NoRoute, NotOfProject, UnknownAgent
from gateway.domain.ids import AgentId, SessionKey
from gateway.routing import TIERS, Router

HERE = Address("telegram", "bot", "42", guild="g", team="t")
NAMES = [AgentId(name) for name in ("a", "b", "c", "d", "e", "f")]


def router(*bindings: Binding, default: str | None = "f") -> Router:
    return Router(NAMES, bindings, AgentId(default) if default else None)


LADDER: list[tuple[MatchedBy, Binding]] = [
    ("channel", Binding(NAMES[0], channel="telegram")),
    ("account", Binding(NAMES[1], account_id="bot")),
    ("team", Binding(NAMES[2], team_id="t")),
    ("guild", Binding(NAMES[3], guild_id="g")),
    ("peer", Binding(NAMES[4], peer_id="42")),
]


@pytest.mark.requirement(
    "S-003-Binding-02",
    "S-003-Binding-03",
    "S-003-Binding-04",
    "S-003-Binding-05",
    "S-003-Binding-06",
    "S-003-Binding-07",
)
@pytest.mark.parametrize("rungs", range(6))
def test_the_highest_tier_wins_and_the_default_comes_last(rungs: int) -> None:
    bindings = [binding for _, binding in LADDER[:rungs]]

    route = router(*bindings).resolve(HERE)

    expected = LADDER[rungs - 1][0] if rungs else "default"
    assert route.matched_by == expected
    assert route.binding_index == (rungs - 1 if rungs else None)


@pytest.mark.requirement("S-003-Binding-10")
def test_a_binding_of_which_one_field_does_not_match_never_wins() -> None:
    half = Binding(NAMES[0], channel="slack", peer_id="42")

    assert router(half).resolve(HERE).matched_by == "default"


@pytest.mark.requirement("S-003-Binding-11")
def test_more_fields_win_within_a_tier_and_then_the_first_in_the_file() -> None:
    loose = Binding(NAMES[0], peer_id="42")
    tight = Binding(NAMES[1], peer_id="42", channel="telegram")
    also_tight = Binding(NAMES[2], peer_id="42", account_id="bot")

    assert router(loose, tight, also_tight).resolve(HERE).binding_index == 1
    assert router(loose, also_tight, tight).resolve(HERE).binding_index == 1
    assert router(tight, tight).resolve(HERE).binding_index == 0


@pytest.mark.requirement("S-003-Binding-12", "S-003-Session-01")
def test_without_a_match_and_a_default_the_error_names_the_address() -> None:
    with pytest.raises(NoRoute, match="no agent configured for telegram:bot:42"):
        router(default=None).resolve(HERE)
    assert router().resolve(Address("c", "a")).session_key == SessionKey(NAMES[5], "c", "a", "main")


def test_a_requested_agent_overrides_the_bindings_and_has_to_exist() -> None:
    bound = router(LADDER[4][1])

    assert bound.resolve(HERE, requested="a").agent_id == "a"
    assert bound.resolve(HERE, requested="a").matched_by == "request"
    with pytest.raises(UnknownAgent, match="no agent has id 'z'"):
        bound.resolve(HERE, requested="z")


@pytest.mark.requirement("S-003-Session-10")
def test_another_agent_is_another_session() -> None:
    assert router(LADDER[0][1]).resolve(HERE).session_key != router().resolve(HERE).session_key


def test_every_loser_says_why() -> None:
    rules = [binding for _, binding in LADDER] + [
        Binding(NAMES[0], peer_id="43"),
        Binding(NAMES[0], peer_id="42", channel="telegram"),
        Binding(NAMES[0], peer_id="42", channel="telegram"),
    ]

    rejected = {item.index: item.why for item in router(*rules).rejected(HERE)}

    assert rejected.keys() == {0, 1, 2, 3, 4, 5, 7}
    assert rejected[0] == "binding 6 matches by peer, this one by channel"
    assert rejected[4] == "binding 6 is more specific: 2 fields, here 1"
    assert rejected[5] == "peer is '42', the binding wants '43'"
    assert rejected[7] == "binding 6 is as specific and comes first in the file"


def test_a_thread_is_a_peer_of_its_own_but_its_room_binds_it() -> None:
    route = router(Binding(NAMES[0], peer_id="room")).resolve(Address("c", "a", "room", thread="7"))

    assert (route.agent_id, route.session_key.peer) == ("a", "room/7")


names = st.text("a/~01", min_size=1, max_size=4)
places = st.tuples(names, st.none() | names)


@given(places, places)
@example(("a/0", None), ("a", "0"))
@example(("a/0", "1"), ("a", "0/1"))
@example(("a~1", None), ("a/", None))
def test_no_room_and_no_thread_is_called_like_another(
    one: tuple[str, str | None], other: tuple[str, str | None]
) -> None:
    keys = [
        router()
        .resolve(Address("c", "a", peer, thread=thread, is_foreign=True), requested=NAMES[0])
        .session_key
        for peer, thread in (one, other)
    ]

    assert (keys[0] == keys[1]) == (one == other)


def test_what_a_client_calls_its_conversations_stays_as_it_is() -> None:
    address = Address("telegram", "me", "work/~plans")

    assert router().resolve(address, requested=NAMES[0]).session_key.peer == "work/~plans"


few = st.sampled_from(["x", "y", None])
ids = st.sampled_from(["x", "y"])


@st.composite
def bindings(draw: st.DrawFn) -> Binding:
    values = draw(st.tuples(few, few, few, few, few).filter(any))
    return Binding(draw(st.sampled_from(NAMES)), *values)


def slow(rules: list[Binding], said: Address) -> int | None:
    """The rule of the contract, word for word."""
    have = (said.peer, said.guild, said.team, said.account, said.channel)
    best: tuple[int, int, int] | None = None
    for index, rule in enumerate(rules):
        wants = (rule.peer_id, rule.guild_id, rule.team_id, rule.account_id, rule.channel)
        if any(w is not None and w != h for w, h in zip(wants, have, strict=True)):
            continue
        tier = next(i for i, w in enumerate(wants) if w is not None)
        rank = (tier, -sum(w is not None for w in wants), index)
        best = rank if best is None else min(best, rank)
    return best[2] if best else None


@given(st.lists(bindings(), max_size=12), ids, ids, ids, few, few)
def test_the_index_agrees_with_the_rule_read_aloud(
    rules: list[Binding], channel: str, account: str, peer: str, guild: str | None, team: str | None
) -> None:
    said = Address(channel, account, peer, guild=guild, team=team)
    table = router(*rules)

    route = table.resolve(said)

    assert route.binding_index == slow(rules, said)
    assert len(table.rejected(said)) == len(rules) - (route.binding_index is not None)
    assert route.matched_by in (*TIERS, "default")


@pytest.mark.requirement("S-000-Context-10")
def test_an_agent_of_a_project_answers_its_users_and_nobody_else() -> None:
    users = frozenset({"ann", "telegram:bot:7%3A1"})
    closed = {NAMES[0]: users}
    routes = Router(NAMES, [Binding(NAMES[0], channel="telegram")], NAMES[5], closed=closed)

    def answers(address: Address, requested: str | None = None) -> bool:
        try:
            return routes.resolve(address, requested=requested).agent_id == NAMES[0]
        except NotOfProject:
            return False

    assert answers(Address("websocket", "ann"), "a")
    assert answers(Address("api", "ann", "any"), "a")
    assert not answers(Address("websocket", "bob"), "a")
    assert answers(Address("telegram", "bot", "7:1"))
    assert answers(Address("telegram", "bot", "room", sender="7:1"))
    assert not answers(Address("telegram", "bot", "room", sender="8"))
    assert not answers(Address("telegram", "bot", "room"))
    assert not answers(Address("telegram", "ann"))
