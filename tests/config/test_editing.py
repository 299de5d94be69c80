"""Changes to a file of the operator's: small, whole or not at all, and nothing else is touched."""

import os
import stat
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config.editing import (
    difference,
    read_text,
    save,
    with_budget,
    with_capability,
    with_plugin,
    with_plugin_keys,
    with_tool,
    without_capability,
)
from gateway.config.problems import ConfigInvalid
from gateway.config.sections import parse_capability
from gateway.config.toml import CannotEdit, rewrite
from gateway.config.values import Inputs
from tests.config.arena import KNOWN, Arena
from tests.forms import examples

STORE = parse_capability("store:x")
SHA = "ab" * 32
FILE = """\
# mine
[gateway]
port = 7300   # not the usual one

[[plugins]]
name = "weather"          # its name
path = "bundled:echo"     # its path
capabilities = [
  # where it asks
  "http:a.example", # one
  'http:b.example'  # two
]

# --- how much may wait ---
[queue]
max_pending = 5

[[plugins]]
  name = 'bare'
  path = 'bundled:time' # no more than this
  # the end"""

Edit = Callable[[str], str]


def added(before: str, after: str) -> list[str]:
    """What an edit took away and put there, line by line."""
    lines = difference(before, after, "f").splitlines()[2:]
    return [line for line in lines if line.startswith(("+", "-"))]


def inputs(arena: Arena) -> Inputs:
    return Inputs({}, arena.home, arena.cwd, KNOWN)


def test_a_plugin_is_added_once_and_behind_everything() -> None:
    new = {"name": "new", "path": "new.wasm", "capabilities": ["store:x"], "sha256": SHA}

    after = with_plugin(FILE, new)

    assert after.startswith(FILE)
    assert after.removeprefix(FILE) == (
        '\n\n[[plugins]]\nname = "new"\npath = "new.wasm"\n'
        f'capabilities = ["store:x"]\nsha256 = "{SHA}"\n'
    )
    assert tomllib.loads(after)["plugins"][2] == new
    assert with_plugin("", {"name": "a", "path": "b"}) == '[[plugins]]\nname = "a"\npath = "b"\n'
    with pytest.raises(CannotEdit, match='the file already has a plugin "new"'):
        with_plugin(after, new)


@pytest.mark.parametrize(
    "text",
    ["plugins = []", 'plugins = [{ name = "a", path = "b" }] # c\nx.y = 1\n', "plugins=[\n]"],
)
def test_a_plugin_is_added_to_a_list_that_is_written_in_one(text: str) -> None:
    after = tomllib.loads(with_plugin(text, {"name": "new", "path": "p", "config": {"a": 1}}))

    before = tomllib.loads(text)
    new = {"name": "new", "path": "p", "config": {"a": 1}}
    assert after == {**before, "plugins": [*before["plugins"], new]}


def test_a_grant_changes_one_line_or_none() -> None:
    first = with_capability(FILE, "bare", STORE)
    granted = with_capability(FILE, "weather", STORE)
    again = with_capability(FILE, "weather", parse_capability("http:https://A.example:443"))
    revoked = without_capability(FILE, "weather", parse_capability("http:a.example"))

    assert added(FILE, first) == ['+  capabilities = ["store:x"]']
    assert tomllib.loads(first)["plugins"][1]["capabilities"] == ["store:x"]
    assert added(FILE, granted) == [
        "-  'http:b.example'  # two",
        "+  'http:b.example',  # two",
        '+  "store:x",',
    ]
    assert again == FILE
    assert added(FILE, revoked) == ['-  "http:a.example", # one']


def test_what_is_not_granted_cannot_be_revoked() -> None:
    with pytest.raises(CannotEdit, match="is not granted store:x; it has: http:a.example, http:b"):
        without_capability(FILE, "weather", STORE)
    with pytest.raises(CannotEdit, match="it has: nothing"):
        without_capability(FILE, "bare", STORE)


def test_a_file_is_pinned_and_pinned_anew() -> None:
    once = with_plugin_keys(FILE, "weather", {"sha256": SHA})
    again = with_plugin_keys(once, "weather", {"sha256": "cd" * 32})

    assert added(FILE, once) == [f'+sha256 = "{SHA}"']
    assert added(once, again) == [f'-sha256 = "{SHA}"', f'+sha256 = "{"cd" * 32}"']


@pytest.mark.parametrize(
    "edit",
    [
        lambda text: with_capability(text, "wether", STORE),
        lambda text: without_capability(text, "wether", STORE),
        lambda text: with_plugin_keys(text, "wether", {"sha256": SHA}),
    ],
)
def test_a_plugin_that_is_not_in_the_file_is_said_with_those_that_are(edit: Edit) -> None:
    with pytest.raises(
        CannotEdit, match=r'no \[\[plugins\]\] named "wether"; did you mean "weather"'
    ):
        edit(FILE)


@pytest.mark.parametrize(
    "text",
    [
        "a = ",
        "plugins = 1",
        "[plugins]\nname = 'weather'",
        "plugins=[1]",
        "[[plugins]]\nname = 'weather'\ncapabilities = 'store:x'",
    ],
)
def test_what_is_wrong_already_is_not_edited(text: str) -> None:
    with pytest.raises(CannotEdit):
        with_plugin(text, {"name": "new", "path": "p"})
    with pytest.raises(CannotEdit):
        with_capability(text, "weather", STORE)


LISTS = [
    "[]",
    "[ ]",
    '["http:a.example"]',
    "[ 'http:a.example', 'store:x:ro', ]",
    '[\n  "http:a.example", # one\n  "store:x:ro" # two\n  ]',
    '[\n\t"http:a.example",\n\t# lead\n\t"store:x:ro",\n# end\n]',
    '[ # c\n"http:a.example"]',
    '["http:a.example" # x\n, "store:x:ro"]',
    '[\r\n  "http:a.example",\r\n  "store:x:ro",\r\n]',
    '["http:a.example", "store:x:ro", "http:https://a.example"]',
]
PLACES = [
    "# c\n[[plugins]]\nname = 'p'\npath = 'q'\ncapabilities = {list}\n[plugins.config]\na = 1 # d\n",
    "plugins = [{{ name = 'p', path = 'q', capabilities = {list} }}]\n",
    "[[plugins]]\ncapabilities = {list} # c\nname = 'p'\n[x]\ny = 1\n[[plugins]]\nname = 'q'",
    "\ufeff[[plugins]]\nname = 'p'\n# ä ß\ncapabilities = {list}",
]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("array", LISTS)
def test_only_the_list_changes_however_it_is_written(place: str, array: str) -> None:
    text = place.format(list=array)
    before, after = text.split(array)
    granted = tomllib.loads(text.removeprefix("\ufeff"))["plugins"][0]["capabilities"]

    longer = with_capability(text, "p", STORE)
    assert longer.startswith(before)
    assert longer.endswith(after)
    assert _capabilities(longer) == [*granted, "store:x"]
    assert array.count("#") == longer.count("#") - before.count("#") - after.count("#")
    shorter = without_capability(longer, "p", STORE)
    assert shorter.startswith(before)
    assert shorter.endswith(after)
    assert _capabilities(shorter) == granted


@pytest.mark.parametrize("array", LISTS[2:])
def test_every_spelling_of_a_capability_is_revoked(array: str) -> None:
    text = PLACES[0].format(list=array)

    after = without_capability(text, "p", parse_capability("http:a.example"))

    assert not [one for one in _capabilities(after) if "a.example" in one]


SECRETS = {
    "inline": """secrets = { A = "${env:A}", B = { value = "${env:B}", hosts = ["a.example"] } }""",
    "table": """[plugins.secrets]
A = "${env:A}"  # kept
B = { value = "${env:B}", hosts = ["a.example"] }""",
    "tables": """[plugins.secrets.B]
value = "${env:B}"
hosts = [
    "a.example",
]
[plugins.secrets.A]
value = "${env:A}"
hosts = ["https://a.example:443"]""",
    "dotted": """secrets.A = "${env:A}"
secrets.B.value = "${env:B}"
secrets.B.hosts = ["a.example"]""",
}


@pytest.mark.parametrize("form", SECRETS)
def test_revoking_the_host_of_a_secret_removes_the_secret_however_it_is_written(form: str) -> None:
    own = '[[plugins]]\nname = "t"  # a plugin\npath = "bundled:fetch"\n'
    text = f'{own}capabilities = ["http:a.example"]\n{SECRETS[form]}\n[[plugins]]\nname = "u"\n'

    after = without_capability(text, "t", parse_capability("http:a.example"))

    plugin, other = tomllib.loads(after)["plugins"]
    assert plugin == {"name": "t", "path": "bundled:fetch", "capabilities": []}
    assert other == {"name": "u"}
    assert after.startswith(own)


def test_lines_of_a_file_from_windows_all_end_alike() -> None:
    text = "[agent]\r\nmodel = 'm'\r\n[[plugins]]\r\nname = 'p'\r\npath = 'q' # c\r\n"

    granted = with_capability(text, "p", STORE)
    spread = granted.replace('["store:x"]', '[\r\n  "store:x",\r\n]')
    after = with_tool(with_capability(spread, "p", parse_capability("store:y")), None, "p")
    after = with_plugin(with_plugin_keys(after, "p", {"sha256": SHA}), {"name": "r", "path": "s"})

    assert after.count("\n") == after.count("\r\n") == text.count("\n") + 10
    assert _capabilities(after) == ["store:x", "store:y"]


@pytest.mark.parametrize("place", PLACES)
def test_a_list_that_is_not_there_is_made(place: str) -> None:
    text = place.replace(", capabilities = {list}", "").replace("capabilities = {list}", "")
    text = text.replace("{{", "{").replace("}}", "}")

    after = with_plugin_keys(with_capability(text, "p", STORE), "p", {"sha256": SHA})

    assert _capabilities(after) == ["store:x"]
    assert tomllib.loads(after.removeprefix("\ufeff"))["plugins"][0]["sha256"] == SHA


def _capabilities(text: str) -> list[str]:
    found: list[str] = tomllib.loads(text.removeprefix("\ufeff"))["plugins"][0]["capabilities"]
    return found


GRANTS = st.lists(
    st.sampled_from(
        ["http:a.example", "http:b.example", "store:x", "store:y:ro", "host_function:z"]
    ),
    unique=True,
)
GAPS = st.sampled_from(["", " ", "\n", "\n  ", " # c\n", "\n# 'c', ]\n  "])


@settings(deadline=None, max_examples=examples(200))
@given(st.data())
def test_grants_come_and_go_in_any_list(data: st.DataObject) -> None:
    granted = data.draw(GRANTS)
    quotes = [data.draw(st.sampled_from("\"'")) for _ in granted]
    pieces = [
        f"{data.draw(GAPS)}{quote}{one}{quote}{data.draw(GAPS)}"
        for one, quote in zip(granted, quotes, strict=True)
    ]
    end = data.draw(st.sampled_from(["", ","])) if granted else ""
    array = f"[{','.join(pieces)}{end}{data.draw(GAPS)}]"
    text = f"[[plugins]]\nname = 'p'\ncapabilities = {array} # e\npath = 'q'\n"

    for one in data.draw(GRANTS):
        capability = parse_capability(one)
        if one in granted:
            text = without_capability(text, "p", capability)
            granted.remove(one)
        else:
            text = with_capability(text, "p", capability)
            granted.append(one)
        assert tomllib.loads(text) == {
            "plugins": [{"name": "p", "capabilities": granted, "path": "q"}]
        }


def test_a_difference_shows_references_and_no_secret() -> None:
    before = (
        "[gateway]\ntoken = 'hunter2-hunter2' # was hunter1\n\n[[plugins]]\nname = 'p'\n"
        "path = 'bundled:echo'\nsecrets = { a = '${env:KEY}', b = 'hunter2-other' }\n"
        "config = { note = 'hunter2-hunter2' }\n"
    )

    shown = difference(before, with_plugin_keys(before, "p", {"sha256": SHA}), "config.toml")

    assert f'\n+sha256 = "{SHA}"\n' in shown
    assert "a = '${env:KEY}', b = ***" in shown
    assert "hunter" not in shown
    assert difference(before, before, "config.toml") == ""


def test_what_is_saved_is_there_at_once_with_the_files_mode_and_owner(arena: Arena) -> None:
    path = arena.write("[gateway]\nport = 1\n")
    path.chmod(0o640)
    owner = 65_532 if os.geteuid() == 0 else os.geteuid()  # only root gives files away
    os.chown(path, owner, -1)
    before = read_text(path, inputs(arena))

    save(path, before, before.replace("1", "2"), inputs(arena))

    assert path.read_text() == "[gateway]\nport = 2\n"
    assert (stat.S_IMODE(path.stat().st_mode), path.stat().st_uid) == (0o640, owner)
    assert list(arena.cwd.iterdir()) == [path]


def test_a_file_that_is_missing_is_made_for_its_owner_alone(arena: Arena) -> None:
    path = arena.home / ".config" / "exogate" / "config.toml"

    assert read_text(path, inputs(arena)) == ""
    save(path, "", with_plugin("", {"name": "a", "path": "bundled:echo"}), inputs(arena))

    assert tomllib.loads(path.read_text())["plugins"][0]["name"] == "a"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_link_stays_one(arena: Arena) -> None:
    real, link = arena.write("", "dotfiles/real.toml"), arena.cwd / "config.toml"
    link.symlink_to(real)

    save(link, "", "gateway.port = 1\n", inputs(arena))

    assert link.is_symlink()
    assert real.read_text() == "gateway.port = 1\n"


def test_what_would_not_start_is_not_written(arena: Arena) -> None:
    path = arena.write("# mine\n")
    after = with_plugin("# mine\n", {"name": "a", "path": "missing.wasm"})

    with pytest.raises(ConfigInvalid) as refusal:
        save(path, "# mine\n", after, inputs(arena))

    assert [(p.source, p.line) for p in refusal.value.problems] == [("config.toml", 5)]
    assert path.read_text() == "# mine\n"


def test_a_change_by_someone_else_is_not_overwritten(arena: Arena) -> None:
    path = arena.write("# theirs\n")

    with pytest.raises(CannotEdit, match="changed in the meantime"):
        save(path, "# mine\n", "# mine, edited\n", inputs(arena))

    assert path.read_text() == "# theirs\n"


def test_a_file_that_cannot_be_written_is_said(arena: Arena) -> None:
    path = Path("/proc/nowhere/config.toml")

    with pytest.raises(CannotEdit, match="cannot be written"):
        save(path, "", "gateway.port = 1\n", inputs(arena))


def test_a_plugin_gets_another_file() -> None:
    assert added(FILE, with_plugin_keys(FILE, "bare", {"path": "/new.wasm"})) == [
        "-  path = 'bundled:time' # no more than this",
        '+  path = "/new.wasm" # no more than this',
    ]


AGENTS = """\
[agent] # the first
# no id: main
[agent.limits]
max_iterations = 3

[[agents]]
id = "second"   # its name
tools = ["echo"]  # few
"""


@pytest.mark.parametrize(
    ("agent", "lines"),
    [
        (None, ['+tools = ["new"]']),
        ("main", ['+tools = ["new"]']),
        ("second", ['-tools = ["echo"]  # few', '+tools = ["echo", "new"]  # few']),
    ],
)
def test_an_agent_gets_a_plugins_tools(agent: str | None, lines: list[str]) -> None:
    after = with_tool(AGENTS, agent, "new")

    assert added(AGENTS, after) == lines
    assert with_tool(after, agent, "new") == after


def test_the_usual_agent_has_every_plugin_without_being_told() -> None:
    assert with_tool(FILE, None, "weather") == FILE


def test_an_agent_that_is_not_there_gets_nothing() -> None:
    with pytest.raises(CannotEdit, match='no agent has id "secnd"; did you mean "second"'):
        with_tool(AGENTS, "secnd", "new")
    with pytest.raises(CannotEdit, match="the file has no default agent; name one of: second"):
        with_tool(AGENTS[AGENTS.index("[[agents]]") :], None, "new")
    with pytest.raises(CannotEdit, match="the built-in one has every plugin"):
        with_tool(FILE, "main", "weather")


@pytest.mark.parametrize(
    "text", ["agent = 3", "agents = 3", "agents = [1]", "agent = { tools = 1 }"]
)
def test_agents_that_are_none_get_nothing(text: str) -> None:
    with pytest.raises(CannotEdit, match="the file has errors"):
        with_tool(text, None, "new")


@pytest.mark.parametrize(
    ("text", "scope", "after"),
    [
        ("", "daily", "[budgets]\ndaily = 5\n"),
        ("# mine\n[agent]\n", "agent:main", "# mine\n[agent]\n\n[budgets.agent]\nmain = 5\n"),
        ("[budgets]\ndaily = 9 # c\n", "daily", "[budgets]\ndaily = 5 # c\n"),
        ("[budgets] # c\n", "session", "[budgets] # c\nsession = 5\n"),
        (
            "[budgets]\ndaily = { usd = 1.5, tokens = 9 } # c\n",
            "daily",
            "[budgets]\ndaily = { usd = 1.5, tokens = 5 } # c\n",
        ),
        ("[budgets.daily]\ntokens = 9\n", "daily", "[budgets.daily]\ntokens = 5\n"),
        ("[budgets.agent]\na = 9\n", "agent:a", "[budgets.agent]\na = 5\n"),
        ("[budgets.agent]\na = 9\n", "daily", "[budgets.agent]\na = 9\n\n[budgets]\ndaily = 5\n"),
        ("[budgets]\nagent = { a = 9 }\n", "agent:a", "[budgets]\nagent = { a = 5 }\n"),
        (
            "budgets.agent.a.usd = 2\n",
            "agent:a",
            "budgets.agent.a.usd = 2\nbudgets.agent.a.tokens = 5\n",
        ),
        (
            "[budgets]\nper_agent = { usd = 1.5, tokens = 9 }\n",
            "agent:a",
            "[budgets]\nper_agent = { usd = 1.5, tokens = 9 }\n\n[budgets.agent]\n"
            "a = { tokens = 5, usd = 1.5 }\n",
        ),
        (
            "[budgets.per_agent]\nusd = 1.5\n[budgets.agent]\na = 9\n",
            "agent:a",
            "[budgets.per_agent]\nusd = 1.5\n[budgets.agent]\na = 5\n",
        ),
    ],
)
def test_a_budget_is_set_and_all_else_stays(text: str, scope: str, after: str) -> None:
    assert with_budget(text, scope, 5) == after


@pytest.mark.parametrize("scope", ["weekly", "agent", "agent:", "daily:x", ""])
def test_what_is_no_scope_is_refused(scope: str) -> None:
    with pytest.raises(CannotEdit, match="is not a scope"):
        with_budget("", scope, 5)
    with pytest.raises(CannotEdit, match=r"budget raise token:shop \+N --today"):
        with_budget("", "token:shop", 5)


def one_more(text: str) -> str:
    return rewrite(f"x = {text}", {"x": [*tomllib.loads(f"x = {text}")["x"], 9]})[4:]


def one_less(text: str, index: int) -> str:
    elements = tomllib.loads(f"x = {text}")["x"]
    del elements[index]
    return rewrite(f"x = {text}", {"x": elements})[4:]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("[]", "[9]"),
        ("[1, 2]", "[1, 2, 9]"),
        ("[ 1, 2 ]", "[ 1, 2, 9 ]"),
        ("[\n  1, # a\n  2 # b\n]", "[\n  1, # a\n  2, # b\n  9,\n]"),
        ("[\n\t1,\n\t# end\n]", "[\n\t1,\n\t# end\n\t9,\n]"),
        ("[\n]", "[\n    9,\n]"),
        ("[1 # a, b\n, 2]", "[1 # a, b\n, 2,\n    9,\n]"),
        ("[\n  1 # a\n  , ]", "[\n  1 # a\n  ,\n  9,\n]"),
    ],
)
def test_an_element_more_stands_as_the_others_do(before: str, after: str) -> None:
    assert one_more(before) == after


@pytest.mark.parametrize(
    ("before", "index", "after"),
    [
        ("[1]", 0, "[]"),
        ("[ 1, 2 ]", 0, "[ 2 ]"),
        ("[ 1, 2 ]", 1, "[ 1 ]"),
        ("[\n  1, # a\n  2 # b\n]", 0, "[\n  2 # b\n]"),
        ("[\n  1, # a\n  2 # b\n]", 1, "[\n  1, # a\n]"),
        ("[\n  # lead\n  1, 2, # c\n]", 1, "[\n  # lead\n  1, # c\n]"),
        ("[1 # a\n, 2]", 0, "[# a\n 2]"),
    ],
)
def test_an_element_less_takes_its_comma_and_its_own_line(
    before: str, index: int, after: str
) -> None:
    assert one_less(before, index) == after
