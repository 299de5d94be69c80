"""Conditions as text: a small subset of Python expressions, compiled to closures over plain data.

The subset has no methods, lambdas or powers, and calls only the functions listed here. An attribute
is a key of a mapping. A missing path, and every path below it, is None. Ordering comparisons with None
are false.
"""

import ast
import inspect
import operator
import re
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from gateway.domain.errors import GatewayError
from gateway.domain.text import meant, quoted, short

MAX_CHARACTERS, MAX_DEPTH = 2_000, 50
MAX_NUMBER = 2**63  # bound of whole numbers in arithmetic; a larger one is a mistake or an attack


class ExpressionScope(Protocol):
    """The variables of an expression, by name; a dict implements it."""

    def get(self, name: str, /) -> object: ...


Evaluate = Callable[[ExpressionScope], object]
EVALUATION_ERRORS = (TypeError, ValueError, ArithmeticError, RecursionError)


class ExpressionInvalid(GatewayError):
    """The text is not a valid expression. `column` is an index into the text."""

    code = "expression_invalid"

    def __init__(self, problem: str, column: int) -> None:
        super().__init__(f"expression, column {column + 1}: {problem}")
        self.problem, self.column = problem, column


class ExpressionFailed(GatewayError):
    """The expression has no value for this data."""

    code = "expression_failed"


@dataclass(frozen=True, slots=True)
class Expression:
    """A compiled expression; it holds no state."""

    text: str
    roots: frozenset[str]  # the names that it reads
    run: Evaluate

    def evaluate(self, scope: ExpressionScope) -> object:
        """Raises ExpressionFailed."""
        try:
            return self.run(scope)
        except EVALUATION_ERRORS as error:
            raise ExpressionFailed(f"{short(self.text)}: {error}") from error

    def holds(self, scope: ExpressionScope) -> bool:
        """Raises ExpressionFailed."""
        return bool(self.evaluate(scope))


def _numbers(values: object) -> list[float]:
    if not isinstance(values, Sequence | Set) or isinstance(values, str):
        raise TypeError("needs a list of numbers")
    return [_number(value) for value in values]


_SIZED = (str, list, dict, Sequence, Mapping, Set)  # concrete types first: their check is cheap
FUNCTIONS: Mapping[str, Callable[..., object]] = {
    "len": lambda value: len(value) if isinstance(value, _SIZED) else 0,
    "any": lambda values: isinstance(values, Sequence | Set) and any(values),
    "all": lambda values: isinstance(values, Sequence | Set) and all(values),
    "min": lambda values: min(_numbers(values), default=None),
    "max": lambda values: max(_numbers(values), default=None),
    "sum": lambda values: sum(_numbers(values)),
    "abs": lambda number: abs(_number(number)),
    "round": lambda number: round(_number(number)),
    "lower": lambda text: text.lower() if isinstance(text, str) else None,
    "starts_with": lambda text, start: isinstance(text, str) and text.startswith(start),
    "ends_with": lambda text, end: isinstance(text, str) and text.endswith(end),
}


def compile_expression(
    text: str, *, roots: Collection[str], open_roots: bool = False
) -> Expression:
    """Compiles an expression that may read the names in `roots`. Raises ExpressionInvalid.

    `open_roots`: a name outside `roots` is accepted if the expression reads a key of it.
    """
    if len(text) > MAX_CHARACTERS:
        raise ExpressionInvalid(f"is longer than {MAX_CHARACTERS} characters", 0)
    if "\\" in text:
        raise ExpressionInvalid("has a backslash; strings have no escapes", text.index("\\"))
    # One line keeps columns equal to indexes; a string cannot have a line break.
    line = re.sub(r"[\n\r\t\f]", " ", text)
    start = len(line) - len(line.lstrip(" "))
    try:
        tree = ast.parse(line[start:], mode="eval")
    except SyntaxError as error:
        column = start + max((error.offset or 1) - 1, 0)
        raise ExpressionInvalid(f"cannot be read ({error.msg})", min(column, len(text))) from None
    except (ValueError, RecursionError, MemoryError):
        raise ExpressionInvalid("cannot be read", start) from None
    compiler = _Compiler(line, start, roots, open_roots)
    run = compiler.build(tree.body, 1)
    return Expression(text, frozenset(compiler.seen), run)


@dataclass(slots=True)
class _Compiler:
    """Compiles syntax nodes to closures. A node without a method `of_…` is not allowed."""

    line: str
    start: int  # index of the expression in the line
    roots: Collection[str]
    open_roots: bool
    seen: set[str] = field(default_factory=set)

    def build(self, node: ast.AST, depth: int) -> Evaluate:
        if depth > MAX_DEPTH:
            raise self.refusal(node, f"is nested more than {MAX_DEPTH} deep")
        build = getattr(self, f"of_{type(node).__name__.lower()}", None)
        if build is None:
            raise self.not_allowed(node, node)
        return cast(Evaluate, build(node, depth + 1))

    def refusal(self, node: ast.AST, problem: str) -> ExpressionInvalid:
        offset = getattr(node, "col_offset", 0)  # in bytes
        before = self.line[self.start :].encode(errors="replace")[:offset]
        return ExpressionInvalid(problem, self.start + len(before.decode(errors="replace")))

    def not_allowed(self, node: ast.AST, what: ast.AST) -> ExpressionInvalid:
        return self.refusal(node, f'"{type(what).__name__.lower()}" is not allowed')

    def of_constant(self, node: ast.Constant, _depth: int) -> Evaluate:
        value = node.value
        if not isinstance(value, str | int | float | None):
            raise self.not_allowed(node, node)
        if isinstance(value, int) and abs(value) > MAX_NUMBER:
            raise self.refusal(node, "is too large a number")
        return lambda scope: value

    def of_name(self, node: ast.Name, _depth: int, *, is_path: bool = False) -> Evaluate:
        name = node.id
        if name not in self.roots and not (self.open_roots and is_path and name[0] != "_"):
            choices = (*self.roots, "True", "False", "None")
            raise self.refusal(node, f"unknown name {quoted(name)}{meant(name, choices)}")
        self.seen.add(name)
        return operator.methodcaller("get", name)

    def base(self, node: ast.expr, depth: int) -> Evaluate:
        if isinstance(node, ast.Name):
            return self.of_name(node, depth, is_path=True)
        return self.build(node, depth)

    def of_attribute(self, node: ast.Attribute, depth: int) -> Evaluate:
        key = node.attr
        if key.startswith("_"):
            raise self.refusal(node, f"{quoted(key)} begins with an underscore")
        base = self.base(node.value, depth)

        def look(scope: ExpressionScope) -> object:
            value = base(scope)
            return value.get(key) if isinstance(value, dict | Mapping) else None

        return look

    def of_subscript(self, node: ast.Subscript, depth: int) -> Evaluate:
        base, key = self.base(node.value, depth), self.build(node.slice, depth)
        return lambda scope: _item(base(scope), key(scope))

    def of_boolop(self, node: ast.BoolOp, depth: int) -> Evaluate:
        *parts, last = [self.build(value, depth) for value in node.values]
        stops_at = isinstance(node.op, ast.Or)

        def decide(scope: ExpressionScope) -> object:
            for part in parts:
                value = part(scope)
                if bool(value) is stops_at:
                    return value
            return last(scope)

        return decide

    def of_unaryop(self, node: ast.UnaryOp, depth: int) -> Evaluate:
        operand = self.build(node.operand, depth)
        if not isinstance(node.op, ast.Not | ast.USub):
            raise self.not_allowed(node, node.op)
        is_not = isinstance(node.op, ast.Not)
        return lambda scope: not operand(scope) if is_not else -_number(operand(scope))

    def of_binop(self, node: ast.BinOp, depth: int) -> Evaluate:
        compute = _ARITHMETIC.get(type(node.op))
        if compute is None:
            raise self.not_allowed(node, node.op)
        for side in (node.left, node.right):
            if isinstance(side, ast.Constant) and isinstance(side.value, str):
                raise self.refusal(side, "a string is not a number")
        left, right = self.build(node.left, depth), self.build(node.right, depth)
        return lambda scope: _number(compute(_number(left(scope)), _number(right(scope))))

    def of_compare(self, node: ast.Compare, depth: int) -> Evaluate:
        for operation, right in zip(node.ops, node.comparators, strict=True):
            is_identity = isinstance(operation, ast.Is | ast.IsNot)
            if is_identity and not (isinstance(right, ast.Constant) and right.value is None):
                raise self.refusal(node, '"is" only compares with None; use "=="')
        first = self.build(node.left, depth)
        compares = [_COMPARISONS[type(operation)] for operation in node.ops]
        rest = [self.build(right, depth) for right in node.comparators]

        def chain(scope: ExpressionScope) -> object:
            left = first(scope)
            for compare, right_of in zip(compares, rest, strict=True):
                right = right_of(scope)
                is_lacking = compare in _ORDERED and (left is None or right is None)
                if is_lacking or not compare(left, right):
                    return False
                left = right
            return True

        return chain

    def of_ifexp(self, node: ast.IfExp, depth: int) -> Evaluate:
        test, then, other = (self.build(x, depth) for x in (node.test, node.body, node.orelse))
        return lambda scope: then(scope) if test(scope) else other(scope)

    def of_list(self, node: ast.List | ast.Tuple, depth: int) -> Evaluate:
        parts = [self.build(part, depth) for part in node.elts]
        return lambda scope: [part(scope) for part in parts]

    of_tuple = of_list

    def of_call(self, node: ast.Call, depth: int) -> Evaluate:
        if not isinstance(node.func, ast.Name):
            raise self.refusal(node, "only a function can be called, by its name")
        name = node.func.id
        function = FUNCTIONS.get(name)
        if function is None:
            choices = meant(name, FUNCTIONS) or f"; functions: {', '.join(FUNCTIONS)}"
            raise self.refusal(node, f"unknown function {quoted(name)}{choices}")
        parts = [self.build(part, depth) for part in node.args]
        try:
            inspect.signature(function).bind(*parts)
        except TypeError:
            raise self.refusal(node, f"{name}() does not take {len(parts)} arguments") from None
        if node.keywords:
            raise self.refusal(node, f"{name}() takes no keyword arguments")
        if len(parts) == 1:
            return lambda scope: function(parts[0](scope))
        return lambda scope: function(*[part(scope) for part in parts])


def _number(value: object) -> float:
    if type(value) is float or (type(value) is int and -MAX_NUMBER <= value <= MAX_NUMBER):
        return value
    is_large = type(value) is int
    raise TypeError("too large a number" if is_large else f"{type(value).__name__}, not a number")


def _item(base: object, key: object) -> object:
    if isinstance(base, dict | Mapping):
        return base.get(key)
    if isinstance(base, Sequence) and type(key) is int and -len(base) <= key < len(base):
        return cast(object, base[key])
    return None


_Compare = Callable[[Any, Any], bool]


def _is_in(left: object, right: object) -> bool:
    if right is not None and not isinstance(right, str | Sequence | Mapping | Set):
        raise TypeError(f"{type(right).__name__} is not a list, map or string")
    return right is not None and left in right


_COMPARISONS: Mapping[type[ast.cmpop], _Compare] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: _is_in,
    ast.NotIn: lambda left, right: not _is_in(left, right),
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}
_ORDERED = frozenset({operator.lt, operator.le, operator.gt, operator.ge})  # false for None
_ARITHMETIC: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
