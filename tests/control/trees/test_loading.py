"""A file of trees to plans: everything that is wrong is said at once, with its place and what was meant."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.control.trees import nodes
from gateway.control.trees.engine import LeafRegistry, Run
from gateway.control.trees.kinds import KINDS
from gateway.control.trees.loading import load
from tests.control.trees.shapes import NODES
from tests.control.trees.stage import Stage, codes, ended, problems, refused
from tests.fakes.plans import TEXTS
from tests.forms import examples


def tree(body: str, schema: str = "{}") -> str:
    return f'(tree "t" :blackboard-schema {schema} {body})'


def registry() -> LeafRegistry:
    made = LeafRegistry(
        roots={"config": {"max_iterations"}, "flags": {"BETA"}, "usage": {"tokens"}},
    )
    made.action("oracle.reset_state", reads={"query": "string"}, writes={"turn": "int"})(print)
    made.action("has-tool-calls?")(print)
    made.action("notify.drain", options=["point"])(print)
    return made


@pytest.mark.requirement("S-002-BT-12")
def test_an_unknown_function_is_refused_with_its_place_and_what_was_meant() -> None:
    text = '(tree "t"\n  (sequence\n    (action reset :fn "oracle.reset_stat")))'

    [problem] = refused(text, registry())

    assert problem.render() == (
        't.bt:3:23: error BT021: unknown function "oracle.reset_stat"; '
        'did you mean "oracle.reset_state"?\n'
        '      (action reset :fn "oracle.reset_stat")))\n'
        "                        ^"
    )


@pytest.mark.requirement("S-002-BT-13")
def test_functions_come_from_the_registry_and_from_nowhere_else() -> None:
    for name in ("os.system", "builtins.print", "gateway.app.main"):
        assert "BT021" in codes(tree(f'(action x :fn "{name}")'), registry())
    assert codes(tree('(check "__import__(1)")')) == ["BT026"]


@pytest.mark.requirement("S-002-BT-12")
@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "BT010"),
        ("(sequence (succeed))", "BT010"),
        ('"tree"', "BT010"),
        ('(tree "t" [])', "BT017"),
        ('(tree "t" ("x"))', "BT010"),
        ('(tree "T" (succeed))', "BT016"),
        ("(tree t (succeed))", "BT016"),
        ("(tree)", "BT016"),
        ('(tree "../x" (succeed))', "BT016"),
        ('(tree "t")', "BT012"),
        ('(tree "t" (succeed) (succeed))', "BT012"),
        ('(tree "t" (succeed)) (tree "t" (fail))', "BT015"),
        ('(tree "t" :version "1" (succeed))', "BT013"),
        ('(tree "t" :verson 1 (succeed))', "BT014"),
        ('(tree "t" (succeed) :version)', "BT013"),
        ('(tree "t" :version 1 :version 1 (succeed))', "BT015"),
        ('(tree "t" :inputs [q] (succeed))', "BT020"),
        ('(tree "t" :inputs q (succeed))', "BT013"),
        ('(tree "t" :finally clean (succeed))', "BT010"),
        ('(tree "t" :blackboard-schema [] (succeed))', "BT013"),
        ('(tree "t" :blackboard-schema {:n 1} :max-ticks $n (succeed))', "BT020"),
        (tree("(sequnce (succeed))"), "BT011"),
        (tree("(sequence)"), "BT012"),
        (tree("(invert (succeed) (succeed))"), "BT012"),
        (tree("(succeed (succeed))"), "BT012"),
        (tree("(if (succeed))"), "BT012"),
        (tree("(try (succeed) (succeed))"), "BT012"),
        (tree("(catch (succeed))"), "BT011"),
        (tree("(action)"), "BT016"),
        (tree("(action Upper)"), "BT016"),
        (tree("(action a :fn)"), "BT013"),
        (tree("(action a :fn 3)"), "BT013"),
        (tree('(condition a :fn "x" :expr "1")'), "BT013"),
        (tree("(timeout (succeed))"), "BT017"),
        (tree("(timeout 3s 4s (succeed))"), "BT017"),
        (tree("(timeout soon (succeed))"), "BT017"),
        (tree("(timeout 9999h (succeed))"), "BT003"),
        (tree("(timeout -3 (succeed))"), "BT013"),
        (tree("(repeat :mx 3 (succeed))"), "BT014"),
        (tree("(repeat :max 1.5 (succeed))"), "BT013"),
        (tree('(repeat :until "1" :until-success (succeed))'), "BT013"),
        (tree("(repeat :max 1 :max 2 (succeed))"), "BT015"),
        (tree("(parallel :success 3 (succeed))"), "BT013"),
        (tree("(parallel :success few (succeed))"), "BT013"),
        (tree("(parallel :policy :some (succeed))"), "BT013"),
        (tree("(parallel :require-all :success 1 (succeed))"), "BT013"),
        (tree("(set!)"), "BT013"),
        (tree("(set! :x 1)"), "BT020"),
        (tree("(set! :x 1)", '{:x ""}'), "BT030"),
        (tree("(set! :x $y)", '{:x "" :y 1}'), "BT030"),
        (tree("(emit)"), "BT017"),
        (tree("(emit 3)"), "BT013"),
        (tree("(check)"), "BT017"),
        (tree("(check done)"), "BT017"),
        (tree('(check "done")'), "BT026"),
        (tree('(check "len(")'), "BT026"),
        (tree('(succeed :when "x")'), "BT026"),
        (tree("(succeed :on-error explode)"), "BT013"),
        (tree("(sequence (succeed :id a) (succeed :id a))"), "BT015"),
        (tree("(tool-call $cal)", "{:call nil}"), "BT020"),
        (tree("(tool-call $call.plan.label)", "{:cal nil}"), "BT020"),
        (tree("(tool-call (config))"), "BT013"),
        (tree("(for-each $x (succeed))", "{:x 3}"), "BT030"),
        (tree("(for-each [1] :collect $x (succeed))", "{:x 3}"), "BT030"),
        (tree("(for-each [1] :collect $x (succeed))"), "BT020"),
        (tree("(for-each [1] :collect 3 (succeed))"), "BT013"),
        (tree("(for-each [1] :on-child-fail maybe (succeed))"), "BT013"),
        (tree("(sequence (for-each [1] :as x (succeed)) (tool-call $x))"), "BT020"),
        (tree("(switch 1 {:a})"), "BT013"),
        (tree("(switch 1 {a (succeed)})"), "BT013"),
        (tree("(switch 1 {:a (succeed) :a (succeed)})"), "BT015"),
        (tree("(switch 1 [])"), "BT013"),
        (tree("(switch 1 {:a (succeed)} (succeed))"), "BT012"),
        (tree("(llm-call :stream-to [accumulated])"), "BT013"),
        (tree("(succeed)", "{:x}"), "BT013"),
        (tree("(succeed)", "{:x 1 :x 2}"), "BT015"),
        (tree("(succeed)", "{:x (integer 1)}"), "BT031"),
        (tree("(succeed)", "{:x (list strng)}"), "BT030"),
        (tree("(succeed)", "{:x (map string {})}"), "BT030"),
        (tree("(succeed)", '{:x (int "a")}'), "BT030"),
        (tree("(succeed)", "{:x ((list int) [a])}"), "BT030"),
        (tree("(succeed)", "{:x ((map int) [])}"), "BT031"),
        (tree("(succeed)", "{:x $y}"), "BT020"),
        (tree("(succeed)", "{:x (config y)}"), "BT031"),
        (tree("(succeed)", "{:_x 1}"), "BT016"),
        (tree("(subtree other)"), "BT022"),
        ('(tree "a" (subtree b)) (tree "b" (subtree a))', "BT023"),
        ('(tree "a" (sequence (subtree a)))', "BT023"),
        ('(tree "a" (subtree b)) (tree "b" (succeed) :finally (succeed))', "BT014"),
        ('(tree "a" (subtree b :bind {:x 1})) (tree "b" (succeed))', "BT020"),
    ],
)
def test_what_is_wrong_is_refused(text: str, code: str) -> None:
    assert code in [problem.code for problem in refused(text)]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (tree("(repeat :max (config max_iteration) (succeed))"), "BT025"),
        (tree('(tool-call (env-flag "ALPHA"))'), "BT025"),
        (tree('(check "usag.tokens > 1")'), "BT026"),
        (tree("(succeed)", "{:p (model:Persn)}"), "BT031"),
        (tree("(condition has-tool-call?)"), "BT021"),
        (tree("(decorator has-tool-call? (succeed))"), "BT021"),
        (tree("(llm-call)"), "BT021"),
        (tree('(action d :fn "notify.drain" :pint "x")'), "BT014"),
        (tree('(action r :fn "oracle.reset_state")', "{:query 3 :turn 0}"), "BT033"),
    ],
)
def test_with_a_registry_more_is_known(text: str, code: str) -> None:
    assert code in [problem.code for problem in refused(text, registry())]


def test_what_fits_the_registry_loads() -> None:
    text = tree(
        "(sequence (action r :fn oracle.reset_state) "
        '(action d :fn "notify.drain" :point "turn_start" :doc "x") '
        '(check "turn > 1" :when "flags.BETA") '
        '(repeat :max (config max_iterations) :until "usage.tokens > 1" (condition has-tool-calls?)))',
        '{:query "" :turn 0 :p 1}',
    )

    assert codes(text, registry()) == ["BT043"]  # :p is never read


def test_all_problems_are_said_at_once_in_the_order_of_the_text() -> None:
    found = refused(tree("(sequence (acton a) (tool-call 1x) (timeout 3 (succeed)) (set! :y 1))"))

    assert [problem.code for problem in found] == ["BT011", "BT017", "BT001", "BT034", "BT020"]
    assert 'did you mean "action"?' in found[0].message


@pytest.mark.requirement("S-002-BT-03")
def test_keys_have_types_and_defaults() -> None:
    plan = load(
        tree(
            "(succeed)",
            '{:a "x" :b 1 :c 1.5 :d true :e nil :f [1] :g {:k [2]} :h (int) :i (list string) '
            ":j ((list int) [1]) :k ((option string) nil) :l (option int) :m (float 2) :n (any)}",
        )
    )

    types = "string int float bool (option_any) list map int (list_string) (list_int)"
    types += " (option_string) (option_int) float any"
    assert [str(key.type) for key in plan.schema.values()] == [
        word.replace("_", " ") for word in types.split()
    ]
    assert [plan.schema[name].default for name in "aghijkl"] == [
        "x",
        {"k": [2]},
        0,
        [],
        [1],
        None,
        None,
    ]


@pytest.mark.requirement("S-002-BT-03")
def test_a_key_can_be_asked_for_in_both_spellings() -> None:
    stage = Stage()
    seen: list[object] = []
    stage.offer("see", lambda call: seen.append(call.option("it")), options=["it"])
    schema = '{:who {:name "Ada"}}'

    ended(
        stage.run(tree("(sequence (action see :it $who.name) (action see :it $who.age))", schema))
    )
    ended(stage.run(tree("(action see :it (blackboard :who))", schema)))

    assert seen == ["Ada", None, {"name": "Ada"}]


def test_a_key_that_a_function_needs_is_declared_with_a_warning() -> None:
    stage = Stage()
    stage.offer("count", lambda call: call.write("turn", 1), writes={"turn": "int"})
    run = stage.run(tree("(action count)"))

    ended(run)

    assert [warning.code for warning in run.plan.warnings] == ["BT024"]
    assert run.frame.values == {"turn": 1}


TWO = (
    '(tree "main" :blackboard-schema {:n 1 :out ""} (sequence '
    '(subtree helper :bind {:in $n :label "x"}) (subtree helper :bind {:in $n :label "y"}))) '
    '(tree "helper" :blackboard-schema {:in 0 :label "" :own 0} '
    "(sequence (action bump) (set! :own 5)))"
)


def test_a_subtree_has_a_frame_of_its_own_and_bound_keys_are_its_callers() -> None:
    stage = Stage()

    def bump(call: object) -> None:
        frame = call.frame  # type: ignore[attr-defined]  # a Call
        stage.log.append(f"{frame.get('label')} {frame.get('own')}")
        frame.set("in", frame.get("in") + 1)

    stage.offer("bump", bump)
    run = stage.run(TWO)

    ended(run)

    assert stage.log == ["x 0", "y 0"]
    assert run.frame.values == {"n": 3, "out": ""}


def test_a_subtree_may_share_the_keys_of_its_caller() -> None:
    stage = Stage()
    run = stage.run(
        '(tree "main" :blackboard-schema {:n 1} (subtree helper :share true)) '
        '(tree "helper" :blackboard-schema {:n 0 :own 0} (set! :n 7 :own 1))'
    )

    ended(run)

    assert run.frame.values == {"n": 7}


def test_a_subtree_in_place_sees_everything_around_it() -> None:
    stage = Stage()
    run = stage.run(tree("(subtree turn (set! :n 2))", "{:n 1}"))

    ended(run)

    assert run.frame.values == {"n": 2}


def test_subtrees_cannot_multiply() -> None:
    doubling = "".join(
        f'(tree "t{n}" (sequence (subtree t{n + 1}) (subtree t{n + 1})))' for n in range(40)
    )
    chain = "".join(f'(tree "t{n}" (subtree t{n + 1}))' for n in range(4000))

    assert "BT006" in codes(doubling + '(tree "t40" (succeed))')
    assert "BT006" in codes(chain + '(tree "t4000" (succeed))')
    assert "BT006" in codes(tree(f"(sequence {'(succeed)' * 5001})"))


@pytest.mark.requirement("S-002-BT-01")
def test_every_kind_of_node_loads() -> None:
    text = tree(
        """(sequence
          (selector (fail "x") (succeed)) (parallel (succeed)) (memory-sequence (succeed))
          (reactive-sequence (succeed)) (reactive-selector (succeed))
          (for-each $xs :as x :parallel 2 :limit 3 :collect $ys :on-child-fail continue (tool-call $x))
          (if (succeed) (fail)) (while (succeed) (fail)) (switch $n {:a (succeed) :else (fail)})
          (try (succeed) (catch (fail))) (ensure (succeed) (fail))
          (repeat :max 3 :until "n > 1" (succeed)) (repeater :max-iterations 3 :until-success (succeed))
          (retry :max 2 :backoff 1s (succeed)) (invert (succeed)) (force-success (succeed))
          (force-failure (succeed)) (until-fail (wait 1s)) (run-once (succeed))
          (timeout 1m (succeed)) (delay 1s (succeed)) (cooldown 1h (succeed)) (guard "n" (succeed))
          (decorator budget-check (succeed)) (action a :fn "b.c" :any 1) (condition c?)
          (condition d? :expr "n") (check "n") (set! :n 1) (emit "x" {:a $n}) (wait 10ms)
          (llm-call :model $n :stream-to [:n] :timeout 60s) (tool-call $n)
          (subagent "librarian" :input $xs :output $ys :max-turns 10) (subagent librarian)
          (subtree in-place (succeed)) (subtree other))""",
        "{:xs [] :ys [] :n 1}",
    )
    plan = load(f'{text} (tree "other" (succeed))')

    assert {node.kind for node in plan.nodes()} == KINDS.keys()


def test_a_message_never_spans_lines_or_grows_with_its_input() -> None:
    for problem in refused(tree(f'(action a :{"x" * 5000} 1) (check "{"y" * 1900}")')):
        assert len(problem.render()) < 600
        assert len(problem.render().splitlines()) == 3


@given(
    NODES, st.sampled_from(["{}", "{:a 1}", "{:a []}", "{:a (int) :b nil}", "[]"]), st.booleans()
)
@settings(max_examples=examples(400))
def test_any_forms_load_or_are_refused_with_places(node: str, schema: str, known: bool) -> None:
    text = f'(tree "t" :blackboard-schema {schema} {node})'

    for problem in problems(text, registry() if known else None):
        assert 1 <= problem.column <= len(text) + 1
        assert problem.message


@given(st.integers(0, 10**6))
@settings(max_examples=examples(100))
def test_a_damaged_file_is_refused_or_loads(seed: int) -> None:
    chance = random.Random(seed)
    text = list(TEXTS["oracle-agent"])
    for _ in range(chance.randint(1, 8)):
        at = chance.randrange(len(text))
        text[at : at + chance.choice([0, 1, 30])] = chance.choice(
            ["", "(", ")", '"', ":", "$", "[", "#|"]
        )

    found = problems("".join(text))

    assert all(problem.line >= 1 for problem in found)


def test_a_plan_is_shared_and_never_changed_by_its_runs() -> None:
    stage = Stage()
    stage.logs("a")
    first = stage.run(tree("(sequence (action a) (set! :n 2))", "{:n 1}"))
    second = Run(first.plan, first.host, nodes.NODES)

    ended(first)

    assert second.frame.values == {"n": 1}
    assert ended(second).status.name == "SUCCESS"
