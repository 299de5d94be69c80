"""Compares the size of the code with the limits of the project and with the recorded bounds.

python tools/ratchet.py            fails if anything is larger than tools/ratchet.json allows
python tools/ratchet.py --tighten  lowers the bounds to the current figures, and raises none

Blank lines, comments and docstrings do not count. Tokens are bounded too, against dense lines. The same file
has the bounds of the walk, which `python -m bench.walk --check` compares.
"""

import argparse
import ast
import io
import json
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PACKAGE, TESTS = ROOT / "gateway", ROOT / "tests"
RECORD = ROOT / "tools" / "ratchet.json"
LIMITS = {"lines": 800, "function": 60, "branches": 10, "depth": 3, "parameters": 5}

Function = ast.FunctionDef | ast.AsyncFunctionDef
FORKS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.IfExp, ast.comprehension)
NESTS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.Match)
OWN_SCOPE = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def inside(node: ast.AST) -> Iterator[ast.AST]:
    """Yields the nodes of a function, without those of functions and classes inside it."""
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
    """Yields (limit, name, value) for every function and class below a node."""
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


def breaches(files: Iterable["File"]) -> dict[str, int]:
    found: dict[str, int] = {}
    for file in files:
        measured = [("lines", "", file.source.count("\n")), *sizes(file.tree)]
        for limit, name, value in measured:
            if value > LIMITS[limit]:
                found[f"{file.where}:{name} {limit}"] = value
    return found


FREE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
DOCUMENTED = (ast.Module, *OWN_SCOPE)


class File:
    """A source file with its code lines and tokens."""

    def __init__(self, path: Path) -> None:
        self.where = path.relative_to(ROOT).as_posix()
        self.source = path.read_text(encoding="utf-8")
        self.tree = ast.parse(self.source)

    @cached_property
    def size(self) -> tuple[int, int]:
        """Code lines and tokens."""
        free = set(self._docstring_lines())
        lines, tokens = set[int](), 0
        for token in tokenize.generate_tokens(io.StringIO(self.source).readline):
            if token.type not in FREE and token.start[0] not in free:
                tokens += 1
                lines.update(range(token.start[0], token.end[0] + 1))
        return len(lines), tokens

    @property
    def room(self) -> str:
        return self.where.split("/")[1].removesuffix(".py")

    def _docstring_lines(self) -> Iterator[int]:
        for node in ast.walk(self.tree):
            if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
                first = node.body[0]
                yield from range(first.lineno, (first.end_lineno or first.lineno) + 1)


def public_classes(files: Iterable[File]) -> int:
    """Counts the public class names that exist in two modules."""
    homes: defaultdict[str, set[str]] = defaultdict(set)
    for file in files:
        for node in file.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].add(file.where)
    return sum(len(where) > 1 for where in homes.values())


def inner_imports(files: Iterable[File]) -> int:
    return sum(
        isinstance(node, ast.Import | ast.ImportFrom)
        for file in files
        for function in ast.walk(file.tree)
        if isinstance(function, Function)
        for node in inside(function)
    )


def blind_excepts(files: Iterable[File]) -> Counter[str]:
    """Counts the blind excepts of each file."""
    return Counter(
        file.where
        for file in files
        for node in ast.walk(file.tree)
        if isinstance(node, ast.ExceptHandler) and (node.type is None or _is_blind(node.type))
    )


def _is_blind(caught: ast.expr) -> bool:
    names = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return any(
        isinstance(name, ast.Name) and name.id in {"Exception", "BaseException"} for name in names
    )


def _lines(folder: Path) -> int:
    """Counts the lines of the tests, without npm packages."""
    own = (path for path in folder.rglob("*.py") if "node_modules" not in path.parts)
    return sum(path.read_bytes().count(b"\n") for path in own)


def counted(files: list[File]) -> dict[str, Any]:
    """Returns all bounded figures by their names in the record."""
    code: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    for file in files:
        code[file.room] += file.size[0]
        tokens[file.room] += file.size[1]
    rooms = {room: {"code": code[room], "tokens": tokens[room]} for room in sorted(code)}
    whole = {
        "code": code.total(),
        "tokens": tokens.total(),
        "files": len(files),
        "class names in two modules": public_classes(files),
        "imports in functions": inner_imports(files),
        "blind excepts": blind_excepts(files).total(),
        "lines of tests for a hundred": round(100 * _lines(TESTS) / _lines(PACKAGE)),
    }
    return {"all": whole, "rooms": rooms, "breaches": breaches(files)}


def differences(
    now: dict[str, Any], allowed: dict[str, Any], name: str = ""
) -> Iterator[tuple[str, int, int]]:
    """Yields (name, now, allowed) for every changed figure; a figure without a bound must be 0."""
    for key in sorted({*now, *allowed}):
        value, bound = now.get(key, 0), allowed.get(key, 0)
        if isinstance(value or bound, dict):
            yield from differences(value or {}, bound or {}, f"{name}{key} ")
        elif value != bound:
            yield f"{name}{key}", value, bound


def main() -> int:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--tighten", action="store_true")
    given = options.parse_args()
    record: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))
    now = counted([File(path) for path in sorted(PACKAGE.rglob("*.py"))])
    different = list(differences(now, {name: record.get(name, {}) for name in now}))
    larger = [
        f"{name}: {value}, allowed {bound}" for name, value, bound in different if value > bound
    ]
    print("\n".join(larger))
    print(" · ".join(f"{room} {size['code']}" for room, size in now["rooms"].items()))
    print(", ".join(f"{value} {name}" for name, value in now["all"].items()))
    if given.tighten and not larger:
        RECORD.write_text(json.dumps({**record, **now}, indent=1) + "\n", encoding="utf-8")
    return 1 if larger else 0


if __name__ == "__main__":
    sys.exit(main())
