"""Calls are genuine or refused: vectors that others published, and everything beside them."""

import base64
import hashlib
import hmac
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gateway.channels.adapters import Challenge, Description, Verify, Webhook
from gateway.channels.webhooks import (
    MOST_SIGNATURES,
    Challenger,
    ChannelRefused,
    NotGenuine,
    Verifier,
    verifier,
)
from gateway.domain.channels import ChannelDef, WebhookCall
from gateway.domain.ids import Secret
from gateway.domain.plugins import PluginSecret
from tests.fakes.clock import FakeClock

ORDER = 2**252 + 27742317777372353535851937790883648493  # of the group of ed25519


@dataclass(frozen=True)
class Sample:
    """A recipe with a call that fits it."""

    recipe: Verify
    secret: str
    body: bytes
    headers: Mapping[str, str]
    at: float = 0.0  # seconds since 1970
    config: Mapping[str, object] | None = None

    @property
    def call(self) -> WebhookCall:
        return WebhookCall("c", "POST", "", "", tuple(self.headers.items()), self.body)

    @property
    def verifier(self) -> Verifier:
        channel = a_channel(self.secret, self.config)
        return verifier(described(self.recipe), channel, clock_at(self.at))


def clock_at(seconds: float) -> FakeClock:
    return FakeClock(datetime.fromtimestamp(seconds, UTC))


def described(*recipes: Verify) -> Description:
    return Description("c", (Webhook("webhook"),), verify=recipes)


def a_channel(secret: str | None, config: Mapping[str, object] | None = None) -> ChannelDef:
    secrets = () if secret is None else (PluginSecret("key", Secret(secret), frozenset()),)
    return ChannelDef("c", "p", secrets=secrets, config=config or {})


SLACK = Sample(
    Verify(
        "hmac_sha256",
        "x-slack-signature",
        secret="key",
        prefix="v0=",
        signs="v0:{timestamp}:{body}",
        timestamp_header="x-slack-request-timestamp",
    ),
    "8f742231b10e8888abcd99yyyzzz85a5",
    b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow"
    b"&channel_id=G8PSS9T3V&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner"
    b"&command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands"
    b"%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN"
    b"&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c",
    {
        "x-slack-signature": "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503",
        "x-slack-request-timestamp": "1531420618",
    },
    1531420618,
)
GITHUB = Sample(
    Verify("hmac_sha256", "x-hub-signature-256", secret="key", prefix="sha256="),
    "It's a Secret to Everybody",
    b"Hello, World!",
    {
        "x-hub-signature-256": "sha256=757107ea0eb2509fc211221cce984b8a"
        "37570b6d7586c22c46f4379c8b043e17"
    },
)
STANDARD = Sample(
    Verify(
        "hmac_sha256",
        "webhook-signature",
        secret="key",
        prefix="v1,",
        encoding="base64",
        signs="{id}.{timestamp}.{body}",
        several=True,
        secret_form="whsec",
        id_header="webhook-id",
        timestamp_header="webhook-timestamp",
    ),
    "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
    b'{"test": 2432232314}',
    {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    },
    1614265330,
)
RFC_8032 = Sample(
    Verify("ed25519", "x-signature", key="public_key"),
    "",
    b"\x72",
    {
        "x-signature": "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
    },
    config={"public_key": "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c"},
)
DISCORD_KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
DISCORD = Sample(
    Verify(
        "ed25519",
        "x-signature-ed25519",
        key="public_key",
        signs="{timestamp}{body}",
        timestamp_header="x-signature-timestamp",
    ),
    "",
    b'{"type":1}',
    {
        "x-signature-ed25519": DISCORD_KEY.sign(b'1700000000{"type":1}').hex(),
        "x-signature-timestamp": "1700000000",
    },
    1700000000,
    {"public_key": DISCORD_KEY.public_key().public_bytes_raw().hex()},
)
TELEGRAM = Sample(
    Verify("token", "x-telegram-bot-api-secret-token", secret="key"),
    "A-Za-z0-9_-",
    b"{}",
    {"x-telegram-bot-api-secret-token": "A-Za-z0-9_-"},
)
MATRIX = Sample(
    Verify("token", "authorization", secret="key", prefix="Bearer ", wrong_status=403),
    "hs-token",
    b"{}",
    {"authorization": "Bearer hs-token"},
)
SAMPLES = {
    "slack": SLACK,
    "github": GITHUB,
    "standard": STANDARD,
    "rfc 8032": RFC_8032,
    "discord": DISCORD,
    "telegram": TELEGRAM,
    "matrix": MATRIX,
}
EVERY = pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES.keys())


def mutations(text: bytes) -> Iterator[bytes]:
    """Every one of a byte: another value, left out, said twice."""
    for at in range(len(text)):
        for byte in range(256):
            if byte != text[at]:
                yield text[:at] + bytes([byte]) + text[at + 1 :]
        yield text[:at] + text[at + 1 :]
        yield text[: at + 1] + text[at:]


def refusal(check: Callable[[], object]) -> NotGenuine:
    with pytest.raises(NotGenuine) as refused:
        check()
    return refused.value


def passes(verify: Verifier, call: WebhookCall) -> bool:
    try:
        verify.check(call)
    except NotGenuine:
        return False
    return True


def with_headers(call: WebhookCall, **values: str) -> WebhookCall:
    given = {**dict(call.headers), **{name.replace("_", "-"): v for name, v in values.items()}}
    return replace(call, headers=tuple(given.items()))


@EVERY
def test_a_call_that_is_genuine_passes(sample: Sample) -> None:
    sample.verifier.check(sample.call)


@pytest.mark.parametrize("sample", [SLACK, GITHUB, STANDARD, RFC_8032, DISCORD])
def test_no_body_but_the_one_that_was_signed_passes(sample: Sample) -> None:
    verify, call = sample.verifier, sample.call
    body = sample.body[:24]  # the rest of a long one is not different

    passed = [
        one for one in mutations(body) if passes(verify, replace(call, body=one + call.body[24:]))
    ]

    assert passed == []


@EVERY
def test_no_header_with_one_byte_changed_passes(sample: Sample) -> None:
    verify, call = sample.verifier, sample.call

    for name, value in call.headers:
        passed = [
            one
            for one in mutations(value.encode())
            if passes(verify, with_headers(call, **{name: one.decode("latin-1")}))
        ]
        # the case of hexadecimal digits says nothing
        signature = sample.recipe.encoding == "hex" and sample.recipe.type != "token"
        same = [one for one in passed if signature and one.lower() == value.encode()]
        assert passed == same
        assert all(one.startswith(sample.recipe.prefix.encode()) for one in passed)


@EVERY
def test_a_header_that_comes_twice_proves_nothing(sample: Sample) -> None:
    for header in sample.call.headers:
        for headers in ((*sample.call.headers, header), (header, *sample.call.headers)):
            call = replace(sample.call, headers=headers)

            assert refusal(partial(sample.verifier.check, call)).why == "wrong"


@EVERY
def test_a_call_without_one_of_its_headers_is_refused(sample: Sample) -> None:
    for missing, _ in sample.call.headers:
        headers = tuple(one for one in sample.call.headers if one[0] != missing)
        call = replace(sample.call, headers=headers)

        error = refusal(partial(sample.verifier.check, call))
        is_proof = missing == sample.recipe.header
        assert (error.why, error.status) == (
            ("missing", 401) if is_proof else ("wrong", sample.recipe.wrong_status)
        )


def test_matrix_tells_a_missing_token_from_a_wrong_one() -> None:
    missing = replace(MATRIX.call, headers=())
    wrong = with_headers(MATRIX.call, authorization="Bearer other")

    assert refusal(lambda: MATRIX.verifier.check(missing)).status == 401
    assert refusal(lambda: MATRIX.verifier.check(wrong)).status == 403


@pytest.mark.parametrize("sample", [SLACK, STANDARD, DISCORD])
@pytest.mark.parametrize(
    ("late_s", "is_genuine"),
    [(0, True), (300, True), (-300, True), (300.5, False), (301, False), (-301, False)],
)
def test_the_window_holds_to_the_second_both_ways(
    sample: Sample, late_s: float, is_genuine: bool
) -> None:
    verify = replace(sample.verifier, clock=clock_at(sample.at + late_s))

    assert passes(verify, sample.call) == is_genuine
    if not is_genuine:
        assert refusal(lambda: verify.check(sample.call)).why == "stale"


@pytest.mark.parametrize(
    "stamp", ["+1531420618", " 1531420618", "1531420618.0", "1_531420618", "", "-1", "9" * 400]
)
def test_a_time_is_digits_and_nothing_else(stamp: str) -> None:
    signed = f"v0:{stamp}:".encode() + SLACK.body
    proof = "v0=" + hmac.digest(SLACK.secret.encode(), signed, hashlib.sha256).hex()
    headers = (("x-slack-signature", proof), ("x-slack-request-timestamp", stamp))

    assert not passes(SLACK.verifier, replace(SLACK.call, headers=headers))


def test_a_signature_is_not_cut_in_another_way() -> None:
    """The same bytes, with the place where the id ends moved."""
    key = base64.b64decode(STANDARD.secret.removeprefix("whsec_"))
    proof = base64.b64encode(hmac.digest(key, b"a.1614265330.x", "sha256")).decode()
    signature = {"webhook_signature": f"v1,{proof}", "webhook_timestamp": "1614265330"}
    meant = replace(with_headers(STANDARD.call, webhook_id="a", **signature), body=b"x")
    dotted = base64.b64encode(hmac.digest(key, b"a.b.1614265330.x", "sha256")).decode()
    moved = with_headers(meant, webhook_id="a.b", webhook_signature=f"v1,{dotted}")

    assert passes(STANDARD.verifier, meant)
    assert not passes(STANDARD.verifier, moved)


def test_one_of_several_signatures_is_enough_but_not_of_endless_many() -> None:
    good = STANDARD.headers["webhook-signature"]
    other = "v1," + base64.b64encode(bytes(32)).decode()

    def call(signatures: str) -> bool:
        return passes(STANDARD.verifier, with_headers(STANDARD.call, webhook_signature=signatures))

    assert call(f"{other} {good}")
    assert call(f"v1a,not-even-base64 {good}")
    assert call(f"v1,not-even-base64 {good}")
    assert not call(f"{other} {other}")
    assert not call(" ".join([other] * MOST_SIGNATURES + [good]))
    assert not call(f"{other},{good.removeprefix('v1,')}")


def test_a_base64_signature_has_one_spelling() -> None:
    good = STANDARD.headers["webhook-signature"]

    for other in (
        good.removesuffix("="),
        good + "=",
        good.replace("+", "-").replace("/", "_"),
        good.replace("1OE=", "1OF="),  # the same bytes, for a lenient reader
        good[:10] + "\n" + good[10:],
    ):
        assert other != good
        assert not passes(STANDARD.verifier, with_headers(STANDARD.call, webhook_signature=other))


def test_a_signature_by_the_same_key_in_another_form_is_refused() -> None:
    """S and S + L satisfy the same equation: only one of them is a signature."""
    raw = bytes.fromhex(RFC_8032.headers["x-signature"])
    s = int.from_bytes(raw[32:], "little") + ORDER
    other = raw[:32] + s.to_bytes(32, "little")

    assert not passes(RFC_8032.verifier, with_headers(RFC_8032.call, x_signature=other.hex()))


def test_the_text_that_is_signed_is_put_together_once() -> None:
    recipe = replace(SLACK.recipe, signs="{timestamp}:{body}")
    sample = replace(SLACK, recipe=recipe, body=b"{timestamp}{body}{id}")
    signed = b"1531420618:{timestamp}{body}{id}"
    proof = "v0=" + hmac.digest(SLACK.secret.encode(), signed, hashlib.sha256).hex()

    assert passes(sample.verifier, with_headers(sample.call, x_slack_signature=proof))


# -------------------------------------------------------------------------- channels without a key
@pytest.mark.parametrize("secret", [None, "", " ", "\t \n", "x" * 1_025])
@pytest.mark.parametrize("sample", [SLACK, STANDARD, TELEGRAM, MATRIX])
def test_a_channel_without_its_secret_is_refused(sample: Sample, secret: str | None) -> None:
    with pytest.raises(ChannelRefused, match="secret 'key'"):
        verifier(described(sample.recipe), a_channel(secret), FakeClock())


@pytest.mark.parametrize(
    "secret", ["MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_", "whsec_*", "whsec_YQ", "WHSEC_YQ=="]
)
def test_a_whsec_secret_is_written_like_one(secret: str) -> None:
    with pytest.raises(ChannelRefused, match="whsec_") as refused:
        verifier(described(STANDARD.recipe), a_channel(secret), FakeClock())

    assert secret.removeprefix("whsec_") not in str(refused.value) or secret == "whsec_"


@pytest.mark.parametrize("key", [None, "", 7, "00", "g" * 64, "0" * 63, "0" * 65, " " + "0" * 63])
def test_a_public_key_is_64_hexadecimal_digits(key: object) -> None:
    with pytest.raises(ChannelRefused, match="public_key"):
        verifier(described(DISCORD.recipe), a_channel("x", {"public_key": key}), FakeClock())


@pytest.mark.parametrize(
    "key",
    [
        "00" * 32,
        "00" * 31 + "80",
        "01" + "00" * 31,
        "01" + "00" * 30 + "80",
        "ec" + "ff" * 30 + "7f",
        "ed" + "ff" * 30 + "7f",
        "ee" + "ff" * 30 + "ff",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
    ],
)
def test_a_public_key_for_which_anybody_can_sign_is_refused(key: str) -> None:
    with pytest.raises(ChannelRefused, match="public_key"):
        verifier(described(DISCORD.recipe), a_channel("x", {"public_key": key}), FakeClock())


def test_config_chooses_the_recipe_and_without_a_choice_there_is_no_channel() -> None:
    hub = replace(GITHUB.recipe, when={"scheme": "github"})
    token = replace(TELEGRAM.recipe, when={"scheme": "token"})

    chosen = verifier(described(hub, token), a_channel("k", {"scheme": "token"}), FakeClock())

    assert chosen.recipe is token
    for config in ({}, {"scheme": "none"}, {"scheme": None}):
        with pytest.raises(ChannelRefused, match='scheme = "github" or scheme = "token"'):
            verifier(described(hub, token), a_channel("k", config), FakeClock())


def test_an_adapter_sees_no_header_that_proves_who_called() -> None:
    left = dict(STANDARD.verifier.without_proof(STANDARD.call.headers))

    assert set(left) == {"webhook-id", "webhook-timestamp"}


# ------------------------------------------------------------------------------------- challenges
ASKED = Challenge("key", "hub.verify_token", "hub.challenge", expects={"hub.mode": "subscribe"})
QUERY = (("hub.mode", "subscribe"), ("hub.challenge", "1158201444"), ("hub.verify_token", "me"))


def test_a_challenge_is_answered_with_what_it_says() -> None:
    assert Challenger(ASKED, "me").answer(QUERY) == "1158201444"


@pytest.mark.parametrize(
    "query",
    [
        (),
        QUERY[:2],
        QUERY[1:],
        (QUERY[0], QUERY[2]),
        (*QUERY, ("hub.verify_token", "me")),
        (*QUERY, ("hub.challenge", "other")),
        (*QUERY[:2], ("hub.verify_token", "")),
        (*QUERY[:2], ("hub.verify_token", "ME")),
        (("hub.mode", "unsubscribe"), *QUERY[1:]),
    ],
)
def test_any_other_challenge_is_refused(query: tuple[tuple[str, str], ...]) -> None:
    assert refusal(lambda: Challenger(ASKED, "me").answer(query)).status == 403


def test_nothing_that_is_printed_of_a_verifier_holds_its_secret() -> None:
    challenge = Challenge("key", "hub.verify_token", "hub.challenge")

    shown = repr((SLACK.verifier, Challenger(challenge, SLACK.secret)))

    assert SLACK.secret not in shown
