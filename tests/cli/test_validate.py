"""`exogate config validate` says what a start would refuse, and what is no error but surely not meant."""

import pytest

from tests.cli.conftest import Shell
from tests.fakes.compiled import USUAL, compiled

AGENT = '[agent]\nid = "main"\nprovider = "demo"\n'
TELEGRAM = """[[plugins]]
name = "telegram"
path = "bundled:telegram"
capabilities = ["http:api.telegram.org"]
[channels.telegram]
plugin = "telegram"
secrets = { bot_token = "${env:BOT}" }
"""


@pytest.fixture
def seeded(alone: Shell) -> Shell:
    compiled(alone.config.parent / "data", "telegram", *USUAL)
    return alone


def validate(alone: Shell, text: str, **env: str) -> tuple[int, dict[str, tuple[str, int, int]]]:
    """The exit code, and code, line and column by key."""
    head = f'[gateway]\nport = 0\ndata_dir = "{alone.config.parent}/data"\n'
    alone.config.write_text(text if "[gateway]" in text else head + text, encoding="utf-8")
    alone.config.chmod(0o600)
    told = alone("config", "validate", "--json", env={"BOT": "1:a-bot-token", **env})
    rows = [*told.json.get("problems", ()), *told.json["notices"]]
    assert told.json["ok"] is (told.code == 0)
    return told.code, {row["key"]: (row["code"], row["line"], row["column"]) for row in rows}


@pytest.mark.parametrize(
    ("text", "key", "place"),
    [
        (AGENT + 'tree = "bad.bt"', "agent.tree", (7, 8)),
        (AGENT + 'soul_path = "latin.md"', "agent.soul_path", (7, 13)),
        (AGENT + 'soul_path = "empty.md"', "agent.soul_path", (7, 13)),
        (
            AGENT + '[[subagents]]\nname = "c"\nprompt_path = "latin.md"',
            "subagents.0.prompt_path",
            (9, 15),
        ),
        (
            '[[agents]]\nid = "a"\nprovider = "demo"\n'
            '[[agents]]\nid = "b"\nprovider = "demo"\nsoul_path = "latin.md"',
            "agents.1.soul_path",
            (10, 13),
        ),
        (
            AGENT + '[[plugins]]\nname = "e"\npath = "bundled:echo"\nsha256 = "' + "0" * 64 + '"',
            "plugins.0.sha256",
            (10, 10),
        ),
        (AGENT + '[[plugins]]\nname = "e"\npath = "latin.md"', "plugins.0", (7, 3)),
        (
            AGENT + '[[plugins]]\nname = "w"\npath = "bundled:webhook"\n[channels.w]\nplugin = "w"',
            "channels.w",
            (10, 11),
        ),
        ('[gateway]\nport = 0\ndata_dir = "latin.md"\n' + AGENT, "gateway.data_dir", (3, 12)),
        (
            '[gateway]\nport = 0\nbind = "192.0.2.1"\ntoken = "${env:BOT}"\n' + AGENT,
            "gateway.bind",
            (3, 8),
        ),
    ],
)
def test_what_a_start_would_refuse_is_an_error_at_its_place(
    alone: Shell, text: str, key: str, place: tuple[int, int]
) -> None:
    folder = alone.config.parent
    (folder / "latin.md").write_bytes(b"\xff\xe9")
    (folder / "empty.md").touch()
    (folder / "bad.bt").write_text("(nonsense")

    code, found = validate(alone, text, BOT="a-token-of-some-length")

    assert (code, found[key]) == (78, ("CFG018", *place))
    assert not (folder / "data").exists()


SAME = '[agent]\nprovider = "demo"\nmodel = "demo"\n[agent.fallback]\nprovider = "demo"\n'


@pytest.mark.parametrize(
    ("text", "key", "code", "place"),
    [
        (SAME, "agent.fallback", "CFG017", (7, 1)),
        (
            '[agent]\nprovider = "ollama"\nmodel = "a"\n'
            '[agent.fallback]\nprovider = "demo"\n'
            '[agent.fallback.fallback]\nprovider = "ollama"\nmodel = "a"',
            "agent.fallback.fallback",
            "CFG017",
            (9, 1),
        ),
        (
            AGENT + '[[bindings]]\nagent_id = "mian"\npeer_id = "x"',
            "bindings.0.agent_id",
            "CFG009",
            (8, 12),
        ),
        (AGENT + '[[agents]]\nid = "main"\nprovider = "demo"', "agents.0.id", "CFG008", (8, 6)),
        (
            '[[agents]]\nid = "a"\nprovider = "demo"\n[[agents]]\nid = "a"\nprovider = "demo"',
            "agents.1.id",
            "CFG008",
            (8, 6),
        ),
    ],
)
def test_what_can_never_work_is_an_error(
    alone: Shell, text: str, key: str, code: str, place: tuple[int, int]
) -> None:
    ended, found = validate(alone, text)

    assert (ended, found[key]) == (78, (code, *place))


OPENAI = '[providers.openai]\napi_key = "${env:BOT}"\n'


@pytest.mark.parametrize(
    ("text", "key", "code", "place"),
    [
        (
            AGENT + '[[bindings]]\nagent_id = "main"\nchannel = "telegrm"',
            "bindings.0.channel",
            "unknown-channel",
            (9, 11),
        ),
        (
            AGENT + '[[bindings]]\nagent_id = "main"\npeer_id = "x"\n' * 2,
            "bindings.1",
            "bindings.shadowed",
            (10, 3),
        ),
        (
            '[agent]\nprovider = "openai"\nmodel = "gtp-4o"\n' + OPENAI,
            "agent.model",
            "model.unknown",
            (6, 9),
        ),
        (
            AGENT + '[agent.fallback]\nprovider = "openai"\nmodel = "gpt-4oh"\n' + OPENAI,
            "agent.fallback.model",
            "model.unknown",
            (9, 9),
        ),
        (
            AGENT + TELEGRAM + '[channels.telegram.groups]\n"-100" = {}',
            "channels.telegram.groups.-100",
            "no-mentions",
            (15, 10),
        ),
        (
            AGENT + '[[tokens]]\nname = "a"\ntoken = "0123456789abcdefghij"',
            "tokens.0.token",
            "literal-secret",
            (9, 9),
        ),
    ],
)
def test_what_is_surely_not_meant_is_a_warning_at_its_place(
    seeded: Shell, text: str, key: str, code: str, place: tuple[int, int]
) -> None:
    ended, found = validate(seeded, text)
    told = seeded("config", "validate", env={"BOT": "1:a-bot-token"})

    assert (ended, found[key]) == (0, (code, *place))
    assert f":{place[0]}:{place[1]}: warning[{code}]" in told.err
    assert told.out.endswith("is valid\n")


@pytest.mark.parametrize(
    "text",
    [
        AGENT + '[[bindings]]\nagent_id = "main"\nchannel = "websocket"',
        AGENT + TELEGRAM + '[[bindings]]\nagent_id = "main"\nchannel = "telegram"',
        AGENT + TELEGRAM + 'config = { username = "bot" }\n[channels.telegram.groups]\n"-1" = {}',
        AGENT + TELEGRAM + 'require_mention = false\n[channels.telegram.groups]\n"-1" = {}',
        '[agent]\nprovider = "openai"\n' + OPENAI,
        '[agent]\nprovider = "openai"\nmodel = "mine"\n'
        + OPENAI
        + 'base_url = "http://127.0.0.1:9/v1"',
        '[agent]\nprovider = "openai"\nmodel = "mine"\n'
        + OPENAI
        + "prices = { mine = { input = 1, output = 1 } }",
    ],
)
def test_what_may_be_meant_is_no_warning(seeded: Shell, text: str) -> None:
    assert validate(seeded, text) == (0, {})


@pytest.mark.parametrize(
    ("mode", "text", "code"),
    [
        (0o666, AGENT, "writable-file"),
        (0o602, AGENT, "writable-file"),
        (0o644, AGENT + '[[tokens]]\nname = "a"\ntoken = "0123456789abcdefghij"', "readable-file"),
        (0o644, AGENT, None),
        (0o600, AGENT + '[[tokens]]\nname = "a"\ntoken = "0123456789abcdefghij"', None),
    ],
)
def test_a_file_that_others_could_use_is_a_warning(
    seeded: Shell, mode: int, text: str, code: str | None
) -> None:
    seeded.config.write_text(text, encoding="utf-8")
    seeded.config.chmod(mode)

    told = seeded("config", "validate", "--json")

    codes = {one["code"] for one in told.json["notices"]} & {"writable-file", "readable-file"}
    assert (told.code, codes) == (0, {code} - {None})


def test_warnings_are_said_beside_errors(seeded: Shell) -> None:
    code, found = validate(seeded, SAME + '[[bindings]]\nagent_id = "main"\nchannel = "telegrm"')

    assert code == 78
    assert {"agent.fallback", "bindings.0.channel"} <= set(found)


def test_a_running_gateway_is_not_in_its_own_way(shell: Shell) -> None:
    ran = shell("config", "validate", "--json")

    assert ran.code == 0
    assert not [one for one in ran.json["notices"] if one["code"].startswith("network")]


def test_what_the_gateway_has_compiled_or_refused_is_not_compiled_again_unless_it_changed(
    seeded: Shell,
) -> None:
    plugin = '[[plugins]]\nname = "e"\npath = "bundled:echo"\n'
    good = validate(seeded, AGENT + plugin)
    for made in (seeded.config.parent / "data" / "plugins").glob("*.cwasm"):
        made.write_bytes(b"changed")
        made.with_suffix(".refused").write_text('{"why": "it is too much", "cpu_s": 60}')
    refused = validate(seeded, AGENT + plugin)
    for one in (seeded.config.parent / "data" / "plugins").glob("*.refused"):
        one.unlink()
    mended = validate(seeded, AGENT + plugin)

    assert (good[0], refused[0], mended[0]) == (0, 78, 0)
    assert "plugins.0" in refused[1]
