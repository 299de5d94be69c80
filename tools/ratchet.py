"""Compares the size of the code with the house's limits and with what was allowed before.

python tools/ratchet.py            fails if a limit is newly exceeded, or exceeded by more than before
python tools/ratchet.py --tighten  writes what is there now, if it is smaller
"""

import argparse
import ast
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "gateway"
RECORD = ROOT / "tools" / "ratchet.json"
LIMITS = {"lines": 800, "function": 60, "branches": 10, "depth": 3, "parameters": 5}

Function = ast.FunctionDef | ast.AsyncFunctionDef
FORKS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.IfExp, ast.comprehension)
NESTS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.Match)
OWN_SCOPE = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def inside(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function, without those of the functions and classes that it defines."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, OWN_SCOPE):
            yield child
            yield from inside(child)


def branches(function: Function) -> int:
    count = 1
    for node in inside(function):
        if isinstance(node, (*FORKS, ast.match_case)):
            count += 1
        elif isinstance(node, ast.BoolOp):
            count += len(node.values) - 1
    return count


def depth(node: ast.AST, level: int = 0) -> int:
    deepest = level
    for child in ast.iter_child_nodes(node):
        if isinstance(child, OWN_SCOPE):
            continue
        is_elif = isinstance(node, ast.If) and isinstance(child, ast.If) and node.orelse == [child]
        step = isinstance(child, NESTS) and not is_elif
        deepest = max(deepest, depth(child, level + step))
    return deepest


def lines_of(function: Function) -> int:
    total = (function.end_lineno or function.lineno) - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function, clean=False) is not None:
        total -= (first.end_lineno or first.lineno) - first.lineno + 1
    return total


def sizes(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, str, int]]:
    """(limit, name, value) for every function and class below."""
    for child in ast.iter_child_nodes(tree):
        if not isinstance(child, OWN_SCOPE):
            yield from sizes(child, prefix)
            continue
        name = f"{prefix}{child.name}"
        if not isinstance(child, ast.ClassDef):
            given = [*child.args.posonlyargs, *child.args.args]
            yield "function", name, lines_of(child)
            yield "branches", name, branches(child)
            yield "depth", name, depth(child)
            yield "parameters", name, sum(item.arg not in {"self", "cls"} for item in given)
        yield from sizes(child, f"{name}.")


def breaches() -> dict[str, int]:
    found: dict[str, int] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        where = path.relative_to(ROOT).as_posix()
        measured = [("lines", "", source.count("\n")), *sizes(ast.parse(source))]
        for limit, name, value in measured:
            if value > LIMITS[limit]:
                found[f"{where}:{name} {limit}"] = value
    return found


def rooms() -> Counter[str]:
    count: Counter[str] = Counter()
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).parts
        count[parts[0]] += path.read_text(encoding="utf-8").count("\n")
    return count


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--tighten", action="store_true")
    given = options.parse_args()
    allowed: dict[str, int] = json.loads(RECORD.read_text(encoding="utf-8"))
    now = breaches()
    worse = {name: value for name, value in now.items() if value > allowed.get(name, 0)}
    for name, value in worse.items():
        limit = name.rsplit(" ", 1)[1]
        print(f"{name}: {value}, allowed {allowed.get(name, LIMITS[limit])}")
    counted = rooms()
    print(" · ".join(f"{room} {lines}" for room, lines in counted.most_common()))
    print(
        f"{counted.total()} lines in all; {len(now)} limits exceeded, {len(worse)} more than before"
    )
    if given.tighten and not worse:
        RECORD.write_text(json.dumps(now, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
