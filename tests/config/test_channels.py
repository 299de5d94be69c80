"""Channels as they are configured: through whom they speak, and who may talk to them."""

from dataclasses import replace

import pytest

from gateway.config.load import effective
from gateway.domain.channels import ChannelDef, GroupRule
from gateway.domain.plugins import Origin
from tests.config.arena import Arena

KEY = "hunter2-hunter2"


def file(channel: str, grants: str = "'http:chat.example.com'", name: str = "family") -> str:
    return f"""
[agent]
[[plugins]]
name = "chat"
path = "bundled:echo"
capabilities = [{grants}]
[[plugins]]
name = "sleeping"
path = "bundled:echo"
enabled = false
[channels.{name}]
{channel}
"""


def loaded(arena: Arena, channel: str, grants: str = "'http:chat.example.com'") -> ChannelDef:
    return replace(arena, environment={"KEY": KEY}).load(file(channel, grants)).channels[0]


def problems(arena: Arena, channel: str, name: str = "family") -> list[tuple[str, str]]:
    text = file(channel, name=name)
    found = replace(arena, environment={"KEY": KEY}).problems(text)
    return [(problem.code, problem.key) for problem in found]


def test_a_channel_has_all_that_is_written(arena: Arena) -> None:
    channel = loaded(
        arena,
        """
plugin = "chat"
account = "home"
transport = "poll"
config = { public_url = "https://here.example.org" }
dm_policy = "allowlist"
allow_from = ["4711"]
require_mention = false
on_unknown_send = "hold"
max_age_s = 60
groups."room:7" = { allow_from = ["12"], require_mention = true }
groups."*" = {}
""",
    )

    assert channel == ChannelDef(
        name="family",
        plugin="chat",
        account="home",
        transport="poll",
        config={"public_url": "https://here.example.org"},
        dm_policy="allowlist",
        allow_from=frozenset({"4711"}),
        groups={"room:7": GroupRule(frozenset({"12"}), True), "*": GroupRule()},
        require_mention=False,
        on_unknown_send="hold",
        max_age_s=60.0,
    )


def test_what_is_not_said_lets_nobody_in_unasked(arena: Arena) -> None:
    channel = loaded(arena, 'plugin = "chat"')

    assert channel.dm_policy == "pairing"
    assert channel.allow_from == frozenset()
    assert channel.groups == {}
    assert channel.require_mention


@pytest.mark.parametrize(
    ("grants", "secret", "origins"),
    [
        ("'http:chat.example.com'", "'${env:KEY}'", {"chat.example.com"}),
        ("", "'${env:KEY}'", set()),
        ("'http:a.example.com', 'http:b.example.com'", "'${env:KEY}'", set()),
        (
            "'http:a.example.com', 'http:b.example.com'",
            "{ value = '${env:KEY}', hosts = ['b.example.com'] }",
            {"b.example.com"},
        ),
    ],
)
def test_a_secret_goes_where_it_is_said_or_to_the_only_host_or_nowhere(
    arena: Arena, grants: str, secret: str, origins: set[str]
) -> None:
    channel = loaded(arena, f'plugin = "chat"\nsecrets.token = {secret}', grants)

    assert channel.secrets[0].value.reveal() == KEY
    assert channel.secrets[0].origins == {Origin("https", host, 443) for host in origins}


@pytest.mark.parametrize(
    ("channel", "problem"),
    [
        ('plugin = "nobody"', ("CFG009", "channels.family.plugin")),
        ('plugin = "sleeping"', ("CFG009", "channels.family.plugin")),
        ('plugin = "chat"\nallow_from = ["*"]', ("CFG006", "channels.family.allow_from.0")),
        (
            'plugin = "chat"\ngroups.a.allow_from = ["1", "*"]',
            ("CFG006", "channels.family.groups.a.allow_from.1"),
        ),
        ('plugin = "chat"\nsecrets.x = "${env:GONE}"', ("CFG010", "channels.family.secrets.x")),
        (
            'plugin = "chat"\nsecrets.x = { value = "${env:KEY}", hosts = ["other.example"] }',
            ("CFG009", "channels.family.secrets.x.hosts.0"),
        ),
        (
            'plugin = "chat"\nconfig.token = "${env:KEY}"',
            ("CFG006", "channels.family.config.token"),
        ),
    ],
)
def test_what_cannot_work_is_refused_where_it_stands(
    arena: Arena, channel: str, problem: tuple[str, str]
) -> None:
    assert problems(arena, channel) == [problem]


@pytest.mark.parametrize("name", ["websocket", "api"])
def test_no_channel_is_named_like_a_surface_of_the_gateway(arena: Arena, name: str) -> None:
    assert [key for _, key in problems(arena, 'plugin = "chat"', name)] == [f"channels.{name}"]


def test_an_open_door_is_written_as_a_policy(arena: Arena) -> None:
    refused = replace(arena, environment={"KEY": KEY}).problems(
        file('plugin = "chat"\nallow_from = ["*"]')
    )

    assert 'dm_policy = "open"' in refused[0].fix


def test_what_is_in_force_shows_a_channel_without_its_secret(arena: Arena) -> None:
    told = replace(arena, environment={"KEY": KEY})
    told.write(file("plugin = 'chat'\nsecrets.token = '${env:KEY}'\ngroups.r.allow_from = ['9']"))

    rows = {row.key: row.value for row in effective(told.read())}

    assert rows["channels.family.plugin"] == "chat"
    assert rows["channels.family.secrets.token.value"] == "***"
    assert rows["channels.family.groups.r.allow_from"] == ["9"]
    assert KEY not in str(rows)


SHARED = """
[agent]
[[plugins]]
name = "hooks"
path = "bundled:webhook"
[[plugins]]
name = "tele"
path = "bundled:telegram"
capabilities = ["http:api.telegram.org"]
[[plugins]]
name = "disc"
path = "bundled:discord"
capabilities = ["http:discord.com"]
[channels.one]
{one}
[channels.other]
{other}
"""
HMAC = 'plugin = "hooks"\nconfig = { scheme = "hmac" }\nsecrets = { secret = "${env:ONE}" }'
GITHUB = 'plugin = "hooks"\nconfig = { scheme = "github" }\nsecrets = { secret = "${env:OTHER}" }'
TELEGRAM = 'plugin = "tele"\ntransport = "%s"\nsecrets = { %s = "${env:OTHER}" }'
DISCORD = 'plugin = "disc"\ntransport = "webhook"\nconfig = { public_key = "%s" }'


@pytest.mark.parametrize(
    ("one", "other", "key"),
    [
        (HMAC, GITHUB, "secrets.secret"),
        (HMAC, TELEGRAM % ("webhook", "webhook_secret"), "secrets.webhook_secret"),
        (HMAC, HMAC + '\naccount = "second"', "secrets.secret"),
        (DISCORD % "aB12", DISCORD % "Ab12", "config.public_key"),
    ],
)
def test_two_channels_that_may_take_each_others_calls_are_an_error(
    arena: Arena, one: str, other: str, key: str
) -> None:
    environment = {"ONE": KEY, "OTHER": KEY}
    text = SHARED.format(one=one, other=other)

    (problem,) = replace(arena, environment=environment).problems(text)

    assert (problem.code, problem.key) == ("CFG008", f"channels.other.{key}")
    assert problem.line > 0
    assert '"one"' in problem.message
    assert '"other"' in problem.message
    assert KEY not in problem.render()


@pytest.mark.parametrize(
    ("other", "value"),
    [
        (GITHUB, "another"),
        (TELEGRAM % ("poll", "webhook_secret"), KEY),
        (TELEGRAM % ("webhook", "bot_token"), KEY),
    ],
)
def test_channels_may_share_what_proves_no_call(arena: Arena, other: str, value: str) -> None:
    environment = {"ONE": KEY, "OTHER": value}

    config = replace(arena, environment=environment).load(SHARED.format(one=HMAC, other=other))

    assert [one.name for one in config.channels] == ["one", "other"]
