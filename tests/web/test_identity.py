"""Tokens, the local operator, scopes and delays for guesses."""

import random
from dataclasses import replace
from datetime import timedelta
from ipaddress import ip_address

import anyio
import pytest

from gateway.api.errors import TooManyFailures, Unauthorized
from gateway.domain.ids import AgentId, SessionKey
from gateway.domain.tokens import CreatedToken, digest_of, new_secret
from gateway.web.identity import (
    LOCAL,
    OPERATOR,
    FailedAttempts,
    Identities,
    Identity,
    Principal,
    can_see,
    can_see_session,
    can_speak_as,
    can_use,
    has_scope,
    principal,
)
from gateway.web.settings import TokenDef, WebSettings
from gateway.web.wire.connections import Visitor
from tests.fakes.clock import FakeClock
from tests.fakes.store import NOON, open_memory

HERE = ip_address("127.0.0.2")
ALICE = TokenDef("alice", "tok-alice", frozenset({"chat", "agent:helper"}))
SETTINGS = WebSettings(tokens=(ALICE,), operator_secret="tok-op", cli_secret="tok-cli")


def visitor(authorization: str | None = None, **rest: object) -> Visitor:
    return Visitor(client=HERE, server="", authorization=authorization, **rest)  # type: ignore[arg-type]  # any fields


def identities(settings: WebSettings = SETTINGS) -> Identities:
    return Identities(settings, FakeClock())


@pytest.mark.parametrize(
    ("token", "who"), [("tok-op", OPERATOR), ("tok-cli", LOCAL), ("tok-alice", "alice")]
)
def test_a_token_is_its_principal(token: str, who: Principal | str) -> None:
    found = identities().identify(visitor(f"Bearer {token}"))

    assert found is not None
    assert who in (found.principal, found.principal.name)
    assert token not in repr(found)


@pytest.mark.parametrize(
    "header", ["Bearer wrong", "Bearer ", "Basic tok-op", "tok-op", "", "Bearer tok-op tok-op"]
)
def test_a_wrong_header_is_refused_and_not_ignored(header: str) -> None:
    with pytest.raises(Unauthorized):
        identities(WebSettings(cli_secret="tok-cli")).identify(visitor(header))


def test_a_key_that_a_near_client_cannot_but_send_is_as_none_where_none_can_be_right() -> None:
    free = identities(WebSettings(cli_secret="tok-cli"))
    far = Visitor(client=ip_address("192.0.2.1"), server="", authorization="Bearer any")
    page, proxied = (
        visitor("Bearer any", origin="http://localhost"),
        visitor("Bearer any", is_proxied=True),
    )

    assert free.identify(visitor("Bearer any"), allow_any_key=True) == Identity(LOCAL)
    for known, other in (
        (free, far),
        (free, page),
        (free, proxied),
        (identities(), visitor("Bearer any")),
    ):
        with pytest.raises(Unauthorized):
            known.identify(other, allow_any_key=True)
    with pytest.raises(Unauthorized):
        free.identify(visitor("Basic any"), allow_any_key=True)


def test_two_authorization_headers_are_refused() -> None:
    twice = visitor("Bearer tok-op", repeated=frozenset({"authorization"}))

    with pytest.raises(Unauthorized):
        identities().identify(twice)


def test_without_tokens_a_near_visitor_is_the_local_operator() -> None:
    free = identities(WebSettings(cli_secret="tok-cli"))

    assert free.identify(visitor()) == Identity(LOCAL)
    assert free.identify(visitor(origin="http://localhost")) is None
    assert free.identify(visitor(is_proxied=True)) is None


def test_with_a_token_configured_being_near_is_no_credential() -> None:
    assert identities().identify(visitor()) is None


def guess(known: Identities, of: Visitor | None = None) -> Exception:
    try:
        known.authenticate("guess", of or visitor())
    except (Unauthorized, TooManyFailures) as error:
        return error
    raise AssertionError("a guess was let in")


def test_after_ten_wrong_tokens_an_address_is_slowed_and_no_other() -> None:
    clock = FakeClock()
    known = Identities(SETTINGS, clock)
    elsewhere = Visitor(client=ip_address("127.0.0.3"), server="")
    first = [guess(known) for _ in range(10)]
    late = [guess(known) for _ in range(6)]

    assert {type(error) for error in first} == {Unauthorized}
    assert [getattr(error, "delay_s", None) for error in late] == [1, 1, 1, 1, 0, 0]
    assert {getattr(error, "retry_after_s", None) for error in late} == {300}
    assert type(guess(known, elsewhere)) is Unauthorized
    clock.move(1)
    assert getattr(guess(known), "delay_s", None) == 1
    clock.move(301)
    assert type(guess(known)) is Unauthorized


def test_only_so_many_answers_are_late_at_a_time_whatever_the_addresses() -> None:
    known = identities(replace(SETTINGS, auth_delayed=7))
    delays = []
    for number in range(5):
        peer = Visitor(client=ip_address(f"192.0.2.{number}"), server="")
        delays += [getattr(guess(known, peer), "delay_s", None) for _ in range(13)][10:]

    assert delays == [1] * 7 + [0] * 8


@pytest.mark.parametrize("token", ["tok-op", "tok-cli", "tok-alice"])
def test_a_valid_token_is_let_in_also_where_somebody_guesses(token: str) -> None:
    known = identities()
    for _ in range(100):
        guess(known)

    assert known.authenticate(token, visitor())


async def test_wrong_tokens_are_noted_in_the_audit_but_not_each_of_them() -> None:
    async with open_memory() as stores:
        known = Identities(SETTINGS, FakeClock(), stores.audit)
        for _ in range(210):
            guess(known)
        entries = await stores.audit.after(0, limit=99)

    told = [(one.kind, one.actor, one.detail) for one in entries]
    who = "127.0.0.2"
    assert told == [("login.refused", who, f'{{"times":{times}}}') for times in (1, 10, 100)]


def test_failures_that_are_far_apart_slow_nobody_down() -> None:
    clock = FakeClock()
    known = Identities(SETTINGS, clock)
    for _ in range(30):
        assert type(guess(known)) is Unauthorized
        clock.move(7)


def test_one_ipv6_network_is_one_guesser() -> None:
    attempts = FailedAttempts(SETTINGS, FakeClock())
    for last in range(10):
        attempts.refusal(ip_address(f"2001:db8::{last:x}"))

    assert type(attempts.refusal(ip_address("2001:db8::ffff"))) is TooManyFailures
    assert type(attempts.refusal(ip_address("2001:db8:0:1::1"))) is Unauthorized


def test_any_number_of_guessers_needs_bounded_memory() -> None:
    attempts = FailedAttempts(SETTINGS, FakeClock(), max_peers=100)
    for number in range(1_000):
        attempts.refusal(ip_address(0x0A000000 + number))

    assert len(attempts._failed) == 100


def test_replaced_tokens_hold_at_once_and_are_announced() -> None:
    known = identities()
    old = known.authenticate("tok-alice", visitor())
    told: list[bool] = []
    known.on_change(lambda: told.append(known.is_valid(old)))

    known.replace(WebSettings(tokens=(TokenDef("alice", "tok-new", ALICE.scopes),)))

    assert told == [False]
    with pytest.raises(Unauthorized):
        known.authenticate("tok-alice", visitor())
    assert known.authenticate("tok-new", visitor()).principal == old.principal


def test_a_token_with_other_scopes_is_not_the_same_any_more() -> None:
    known = identities()
    old = known.authenticate("tok-alice", visitor())

    known.replace(WebSettings(tokens=(TokenDef("alice", "tok-alice", frozenset({"read"})),)))

    assert not known.is_valid(old)


def test_the_local_operator_ends_with_the_first_token() -> None:
    known = identities(WebSettings())
    local = known.identify(visitor())
    assert local is not None
    assert known.is_valid(local)

    known.replace(SETTINGS)

    assert not known.is_valid(local)


def test_scopes() -> None:
    alice = principal("alice", frozenset({"chat", "agent:helper"}))

    assert has_scope(alice, "chat")
    assert not has_scope(alice, "read")
    assert has_scope(Principal("root", frozenset({"admin"})), "impersonate")
    assert can_use(alice, "helper")
    assert not can_use(alice, "boss")
    assert can_use(LOCAL, "boss")


@pytest.mark.parametrize(
    ("channel", "account", "own"),
    [
        ("websocket", "alice", True),
        ("api", "alice", True),
        ("websocket", "bob", False),
        ("telegram", "alice", False),  # an adapter's account of the same name is another's
    ],
)
def test_a_principal_sees_and_speaks_as_its_own_account_alone(
    channel: str, account: str, own: bool
) -> None:
    alice = Principal("alice", frozenset({"chat"}))

    assert can_see(alice, channel, account) is own
    assert can_speak_as(alice, channel, account) is own


def test_read_sees_everything_and_speaks_as_nobody_else() -> None:
    auditor = Principal("auditor", frozenset({"read"}))

    assert can_see(auditor, "telegram", "x")
    assert not can_speak_as(auditor, "telegram", "x")
    assert can_speak_as(Principal("bridge", frozenset({"impersonate"})), "telegram", "x")


def test_an_agent_s_wall_hides_one_s_own_sessions_with_others() -> None:
    alice = principal("alice", frozenset({"chat", "agent:helper"}))

    assert can_see_session(alice, SessionKey(AgentId("helper"), "websocket", "alice"))
    assert not can_see_session(alice, SessionKey(AgentId("boss"), "websocket", "alice"))


# --- tokens that were created --------------------------------------------------------------------
SECRET = new_secret(bytes(range(32)))
HOUR = timedelta(hours=1)


def created(**more: object) -> CreatedToken:
    given = {"scopes": frozenset({"chat"}), "created_at": NOON, "created_by": "local", **more}
    return CreatedToken(digest_of(SECRET), "phone", SECRET[:8], **given)  # type: ignore[arg-type]  # by name


def test_a_created_token_is_let_in_beside_those_of_the_settings_and_stays_when_they_change() -> (
    None
):
    known = identities()
    known.replace_created([created()])
    phone = known.authenticate(SECRET, visitor())

    known.replace(WebSettings())

    assert phone.principal.name == "phone"
    assert known.is_valid(phone)
    with pytest.raises(Unauthorized):
        known.authenticate("tok-alice", visitor())


def test_a_created_token_reaches_what_the_configuration_lets_its_name_reach() -> None:
    known = identities(replace(SETTINGS, reach=lambda name, scopes: scopes | {f"agent:{name}"}))

    known.replace_created([created()])

    assert known.authenticate(SECRET, visitor()).principal.agents == frozenset({"phone"})


@pytest.mark.parametrize("ends", [{"revoked_at": NOON}, {"expires_at": NOON}])
def test_a_token_that_was_revoked_or_expired_is_refused(ends: dict[str, object]) -> None:
    known = identities()
    known.replace_created([created(**ends)])

    with pytest.raises(Unauthorized):
        known.authenticate(SECRET, visitor())


def test_a_token_of_the_settings_expires() -> None:
    clock = FakeClock()
    bob = TokenDef("bob", "tok-bob", expires_at=clock.now() + HOUR)
    known = Identities(WebSettings(tokens=(bob,)), clock)
    found = known.authenticate("tok-bob", visitor())

    clock.move(3600)

    assert not known.is_valid(found)
    with pytest.raises(Unauthorized):
        known.authenticate("tok-bob", visitor())


@pytest.mark.parametrize("jump", [1.0, 86_400.0 * 400])
async def test_expiry_is_told_while_connected_also_after_the_clock_jumped(jump: float) -> None:
    clock, told = FakeClock(), anyio.Event()
    known = Identities(SETTINGS, clock)
    known.on_change(told.set)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(known.watch)
            await anyio.lowlevel.checkpoint()
            known.replace_created([created(expires_at=clock.now() + timedelta(seconds=1))])
            told = anyio.Event()
            known.on_change(lambda: told.set())
            while not told.is_set():
                await clock.until_someone_sleeps()
                clock.move(jump)
                await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()


def test_a_mistyped_token_is_refused_and_so_is_one_that_is_nobody_s_any_more_though_near() -> None:
    free = identities(WebSettings(cli_secret="tok-cli"))
    near = f"Bearer {SECRET}"

    with pytest.raises(Unauthorized):
        free.identify(visitor(near), allow_any_key=True)
    free.replace_created([created(revoked_at=NOON)])
    with pytest.raises(Unauthorized):
        free.identify(visitor(near), allow_any_key=True)
    for typed in (near[:-1] + "~", near[:-1], near + "x"):
        with pytest.raises(Unauthorized):
            free.identify(visitor(typed), allow_any_key=True)


def test_a_token_of_the_file_may_look_like_a_created_one_without_a_checksum() -> None:
    looks = "exo_" + "x" * 38
    known = identities(WebSettings(tokens=(TokenDef("odd", looks),)))

    assert known.authenticate(looks, visitor()).principal.name == "odd"


def test_ten_thousand_wrong_tokens_leave_the_right_ones_valid_and_the_use_noted() -> None:
    used: list[bytes] = []
    known = Identities(SETTINGS, FakeClock(), used=used.append)
    known.replace_created([created()])
    dice = random.Random(5)
    for _ in range(10_000):
        with pytest.raises((Unauthorized, TooManyFailures)):
            known.authenticate(new_secret(dice.randbytes(32)), visitor())

    assert known.authenticate(SECRET, visitor()).principal.name == "phone"
    assert used == [digest_of(SECRET)]
