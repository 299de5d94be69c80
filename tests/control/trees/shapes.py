"""Random nodes: most of them wrong in some way."""

from hypothesis import strategies as st

from gateway.control.trees.kinds import ALIASES, CHOICES, COMMON, KINDS

WORDS = [
    *KINDS,
    *ALIASES,
    *(word for words in CHOICES.values() for word in words),
    "catch",
    "a",
    "x?",
]
HEADS = st.sampled_from(WORDS)
ARGS = st.sampled_from(
    [*(f":{name}" for kind in KINDS.values() for name in kind.options), *(f":{c}" for c in COMMON)]
    + [
        "$a",
        "$b.c",
        "1",
        "-1",
        "2s",
        '"a > 1"',
        '"x"',
        "[:a]",
        "{:a 1}",
        "(config x)",
        "nil",
        "true",
    ]
    + ["(blackboard :q)", "all", "[$a]", "{:a (succeed)}", "(env-flag X)", ":a"]
)
NODES = st.recursive(
    st.sampled_from(["(succeed)", "(action a)", "(wait 1s)", "(set! :a 1)"]),
    lambda inner: st.tuples(HEADS, st.lists(st.one_of(inner, ARGS), max_size=5)).map(
        lambda made: f"({made[0]} {' '.join(made[1])})"
    ),
    max_leaves=12,
)
