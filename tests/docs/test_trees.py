"""docs/reference/trees.md names every node, function and name to look up, and what it shows works."""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from datetime import UTC, datetime
from inspect import getmembers, isfunction
from pathlib import Path

import pytest
from click.testing import CliRunner
from pydantic_core import from_json

from gateway.agent.driver import ENDING_S
from gateway.agent.effects import (
    AskModel,
    CallTool,
    Effect,
    Finish,
    Job,
    ModelReplied,
    Moment,
    ToolReturned,
    TurnEvent,
)
from gateway.agent.leaves import REGISTRY
from gateway.agent.turn import ROOTS, Turn
from gateway.app.generation import decision_trees
from gateway.cli.control import SHIPPED
from gateway.cli.control import tree as tree_verbs
from gateway.cli.main import exogate
from gateway.control.policy import (
    DECISION_TREES,
    AgentState,
    DecisionTree,
    DefaultDecisionTree,
    MakeDecisionTree,
)
from gateway.control.rules import load_rules
from gateway.control.trees.engine import MAX_PARTS, MAX_WORK, STUCK, TreePlan
from gateway.control.trees.kinds import ALIASES, COMMON, HOSTED, KINDS, OPTION_ALIASES, TREE
from gateway.control.trees.loading import load
from gateway.domain.agents import AgentDef
from gateway.domain.ids import AgentId, NodeId, RunId, SessionKey
from gateway.domain.messages import Chunk, Message, ToolCall, ToolResult, Usage
from gateway.domain.model import ModelReply
from gateway.domain.ports import ToolScope
from gateway.memory.context import Packer
from gateway.sessions.runs import AT_REST
from tests.fakes.model import ScriptedModel, says
from tests.fakes.store import open_memory
from tests.sessions.stage import staged

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "trees.md").read_text(encoding="utf-8")
TREES = re.findall(r"```clojure\n(.*?)```", PAGE, re.DOTALL)
[POLICY] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
LAUNCH = "from gateway.launcher import main; main()"
TOML = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def rows(title: str) -> dict[str, list[str]]:
    """First cell to the others, of all tables below a heading."""
    lines = re.findall(r"^\| `([^|]+)` \|(.*)\|$", section(title), re.MULTILINE)
    return {first: [cell.strip() for cell in rest.split("|")] for first, rest in lines}


def words(cell: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", cell))


class Paper:
    """A run played on paper: the model asks for a search so many times, then it answers."""

    def __init__(
        self, plan: TreePlan, *, calls: int = 1, decision: MakeDecisionTree = DefaultDecisionTree
    ) -> None:
        agent = AgentDef(AgentId("main"), "mock", "mock-1", tools=("search",))
        self.calls, self.said = calls, list[Chunk]()
        self.moment = Moment(datetime(2026, 1, 1, tzinfo=UTC), 0.0)
        job = Job(
            agent=agent,
            plan=plan,
            context=Packer().pack(agent, None, (), Message("user", "What is it?"), ()),
            tools=(),
            scope=ToolScope(SessionKey(agent.id, "web", "main"), RunId("r"), "alice", "c"),
            rules=load_rules(()),
            publish=lambda event: None,
            decision=decision,
            context_id=NodeId("n"),
        )
        self.turn = Turn(job, self.said.append, self.moment)

    def play(self) -> Turn:
        self.turn.advance()
        while self.turn.end is None:
            while self.turn.effects:
                self.turn.on(self._granted(self.turn.effects.pop(0)), self.moment)
        return self.turn

    def _granted(self, wish: Effect) -> TurnEvent:
        if isinstance(wish, CallTool):
            found = ToolResult(wish.call.id, wish.call.name, f"found {wish.call.id}")
            return ToolReturned(wish.ticket, found)
        assert isinstance(wish, AskModel)
        call = ToolCall(f"c{wish.step}", "search_code", f'{{"text": "{wish.step}"}}')
        calls = (call,) if wish.step < self.calls else ()
        reply = ModelReply("mock", "mock-1", "so", tool_calls=calls, usage=Usage(1, 1))
        return ModelReplied(wish.ticket, reply)

    def system(self, system_type: str) -> list[object]:
        return [
            chunk.data["system_message"]
            for chunk in self.said
            if chunk.type == "system" and chunk.data["system_type"] == system_type
        ]


def test_every_function_is_documented_with_what_it_writes_and_its_options_and_no_other() -> None:
    documented = {
        name: (words(writes), {option.removeprefix(":") for option in words(options)})
        for name, (writes, options, _) in rows("Functions").items()
    }

    assert documented == {
        name: (
            set(function.writes),
            set(function.options) | set(KINDS[name].options if name in HOSTED else ()),
        )
        for name, function in REGISTRY.functions.items()
    }


def test_every_node_that_can_be_used_is_documented_with_its_options_and_no_other() -> None:
    usable = {name for name in KINDS if name not in HOSTED or name in REGISTRY.functions}
    documented = {
        name: {option.removeprefix(":") for option in words(options)}
        for name, (options, _) in rows("Nodes").items()
    }

    assert documented == {name: set(KINDS[name].options) for name in usable}


def test_every_other_spelling_and_common_option_is_documented() -> None:
    below = section("Nodes").split("Every node may have", 1)[1]
    common, aliases = below.split("are understood as", 1)[0], below

    assert {option for option in COMMON if f"`:{option}" in common} == set(COMMON)
    for name in (*ALIASES, *(f":{option}" for option in OPTION_ALIASES)):
        assert f"`{name}`" in aliases, name


def test_every_option_of_a_tree_is_documented() -> None:
    text = section("Syntax").split("Options of the tree itself", 1)[1].split("\n\n", 1)[0]

    assert words(text) - {"decision"} == {f":{option}" for option in TREE.options}


def test_every_name_to_look_up_is_documented_with_its_keys_and_no_other() -> None:
    documented = {name: words(cell) for name, [cell] in rows("Expressions").items()}

    assert set(documented) == set(ROOTS)
    assert documented.pop("limits") == {"[limits]"}
    assert documented.pop("config") == set(ROOTS["config"]) - set(ROOTS["limits"])
    assert documented == {name: set(ROOTS[name]) for name in documented}


def test_every_documented_input_is_given() -> None:
    keys = list(rows("Syntax"))[-7:]
    schema = " ".join(f":{key} nil" for key in keys)
    plan = load(f'(tree "t" :blackboard-schema {{{schema}}} (succeed))', registry=REGISTRY)

    given = Paper(plan).turn.run.frame.values

    assert keys[0] == "query"
    assert [key for key in keys if given[key] is None] == []


def test_every_code_of_a_problem_is_within_a_documented_range() -> None:
    ranges = re.findall(r"`BT(\d+)`–`BT(\d+)`", section("Commands"))
    files = [*(ROOT / "gateway/control/trees").glob("*.py"), ROOT / "gateway/agent/leaves.py"]
    sources = "".join(path.read_text(encoding="utf-8") for path in files)
    codes = {int(code) for code in re.findall(r'"BT(\d+)"', sources)}

    assert {low for low, _ in ranges} <= {f"{code:03d}" for code in codes}
    assert {high for _, high in ranges} <= {f"{code:03d}" for code in codes}
    assert all(any(int(low) <= code <= int(high) for low, high in ranges) for code in codes)


def test_every_tree_that_ships_is_documented_and_no_other() -> None:
    assert set(rows("Bundled trees")) == {path.stem for path in SHIPPED.glob("*.bt")}


def test_every_verb_is_documented_and_no_other() -> None:
    documented = {name.split()[2] for name in rows("Commands") if name.startswith("exogate")}

    assert documented == set(tree_verbs.commands)


@pytest.mark.parametrize("text", TREES)
def test_every_sample_tree_loads_without_a_warning(text: str) -> None:
    assert load(text, "sample.bt", REGISTRY).warnings == ()


@pytest.mark.parametrize("text", TREES)
def test_every_sample_tree_answers(text: str) -> None:
    plan = load(text, "sample.bt", REGISTRY)
    has_loop = any(node.kind == "repeat" for node in plan.nodes())

    turn = Paper(plan, calls=2 if has_loop else 0).play()

    assert turn.end == Finish("answered", "so")
    assert turn.replies == (3 if has_loop else 1)


def test_the_command_says_what_the_page_shows(tmp_path: Path) -> None:
    shown = section("Commands").split("```\n$ exogate tree check mine.bt\n", 1)[1]
    file = tmp_path / "mine.bt"
    file.write_text(TREES[0].replace("user_question", "user_qestion"), encoding="utf-8")

    result = CliRunner().invoke(exogate, ["tree", "check", str(file)])

    assert result.exit_code == 1
    assert result.output.replace(f"{file}:", "mine.bt:") == shown.split("```", 1)[0]


def test_the_bounds_are_those_of_the_code() -> None:
    text = section("Limits of every tree")

    assert f"{STUCK:,} times in a row" in text
    assert f"{MAX_WORK:,} events" in text
    assert f"{MAX_PARTS:,} parts" in text
    assert "`:finally` has five seconds" in text
    assert ENDING_S == 5


async def test_every_field_of_a_run_that_only_a_turn_knows_is_documented_and_no_other() -> None:
    async with open_memory() as stores, staged(ScriptedModel(says("hi")), stores) as stage:
        run_id = await stage.say("hello")
        run = stage.front.live.get(run_id)
        assert run is not None
        before = run.summary(stage.clock)
        await stage.until_idle()
        record = await stores.inbox.find_run(RunId(run_id))
    assert record is not None
    after = from_json(record.summary)
    known = before.keys() - AT_REST.keys()

    documented = {name for cell in rows("Inspecting a run") for name in cell.split("`, `")}

    assert documented == set(after) - known - {"context"}  # that is shown by `context.explain`


# -- decision trees


def test_every_method_of_a_decision_tree_is_documented_and_no_other() -> None:
    methods = {name for name, _ in getmembers(DecisionTree, isfunction) if name[0] != "_"}

    assert {name.split("(")[0] for name in rows("Decision trees")} == methods


def test_every_field_of_the_state_is_documented_and_no_other() -> None:
    text = section("Decision trees").split("Its fields:", 1)[1].split("`extensions` is yours", 1)[0]
    derived = {name for name, value in vars(AgentState).items() if isinstance(value, property)}

    assert words(text) == {field.name for field in fields(AgentState)} | derived


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The package of the page, as an installer leaves it."""
    package = tomllib.loads(TOML[1])
    project = package["project"]
    [module] = package["tool"]["hatch"]["build"]["targets"]["wheel"]["include"]
    (tmp_path / module).write_text(POLICY, encoding="utf-8")
    info = tmp_path / f"{project['name']}-{project['version']}.dist-info"
    info.mkdir()
    told = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (info / "METADATA").write_text(told, encoding="utf-8")
    points = project["entry-points"][DECISION_TREES]
    lines = "".join(f"{name} = {value}\n" for name, value in points.items())
    (info / "entry_points.txt").write_text(f"[{DECISION_TREES}]\n{lines}", encoding="utf-8")
    return tmp_path


def test_the_sample_policy_judges_a_run(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(installed)
    plan = load((SHIPPED / "default.bt").read_text(encoding="utf-8"), "default.bt", REGISTRY)

    paper = Paper(plan, calls=9, decision=decision_trees({"thrifty"})["thrifty"])
    turn = paper.play()

    assert turn.state.limits.max_iterations == 7
    assert turn.end == Finish("no_progress", "so", partial=True)
    assert turn.replies == 3
    assert paper.system("notice") == ["One search is left."]
    assert len(paper.system("no_progress")) == 1


def test_the_sample_policy_lets_a_run_answer(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(installed)
    plan = load((SHIPPED / "default.bt").read_text(encoding="utf-8"), "default.bt", REGISTRY)

    paper = Paper(plan, calls=1, decision=decision_trees({"thrifty"})["thrifty"])

    assert paper.play().end == Finish("answered", "so")
    assert paper.system("notice") == []


def validated(folder: Path, *path: Path) -> subprocess.CompletedProcess[str]:
    """What `exogate config validate` says of an agent with that policy."""
    config = folder / "config.toml"
    config.write_text('[agent]\nid = "main"\ndecision = "thrifty"\n', encoding="utf-8")
    beside = os.pathsep.join(map(str, (*path, ROOT)))
    return subprocess.run(
        [sys.executable, "-c", LAUNCH, "-c", str(config), "config", "validate"],
        env={"PATH": "", "HOME": str(folder), "PYTHONPATH": beside},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_configuration_may_name_the_sample_policy_once_it_is_installed(installed: Path) -> None:
    without, beside = validated(installed), validated(installed, installed)

    assert (without.returncode, beside.returncode) == (78, 0), beside.stdout + beside.stderr
    assert "thrifty" in without.stdout


def test_the_agent_of_the_page_has_its_keys(tmp_path: Path) -> None:
    agent: Mapping[str, object] = tomllib.loads(TOML[0])["agent"]

    assert set(agent) == {"id", "tree", "decision"}
