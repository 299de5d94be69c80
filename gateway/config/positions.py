"""Where in the file a key, its value or its table stands: imported only to show an error."""

import tomllib

import tree_sitter_toml
from tree_sitter import Language, Node, Parser

from gateway.config.problems import KeyPath
from gateway.config.spans import Place, Positions, Span

DEEPEST = 32  # far deeper than any key of ours: paths below are not told apart
_KEYS = {"bare_key", "quoted_key", "dotted_key"}


def locate(source: bytes) -> Positions:
    """Finds every key of a file that is valid TOML."""
    positions = Positions(source)
    root = Parser(Language(tree_sitter_toml.language())).parse(source).root_node
    tables: dict[KeyPath, int] = {}  # arrays of tables: how many elements so far
    _note_comments(positions, root)
    for node in root.named_children:
        match node.type:
            case "pair":
                _place_pair(positions, (), node)
            case "table" | "table_array_element":
                _place_table(positions, tables, node)
    return positions


def _place_table(positions: Positions, tables: dict[KeyPath, int], node: Node) -> None:
    header = next((child for child in node.named_children if child.type in _KEYS), None)
    if header is None:
        return
    path = _place_header(positions, tables, node, _leaves(header)[:DEEPEST])
    positions.places[path].table = _opening(node)  # better than a header that passes through
    _note_comments(positions, node)
    for child in node.named_children:
        if child.type == "pair":
            _place_pair(positions, path, child)


def _place_header(
    positions: Positions, tables: dict[KeyPath, int], node: Node, leaves: list[Node]
) -> KeyPath:
    path: KeyPath = ()
    for number, leaf in enumerate(leaves, start=1):
        path = (*path, _name(leaf))
        _note(positions, path, key=leaf, table=_opening(node))
        if number == len(leaves) and node.type == "table_array_element":
            tables[path] = tables.get(path, -1) + 1
        if path in tables:
            path = (*path, tables[path])
            _note(positions, path, key=leaf, table=_opening(node))
    return path


def _opening(table: Node) -> Span:
    """Its first bracket."""
    return Span(table.start_byte, table.start_byte + 1)


def _place_pair(positions: Positions, above: KeyPath, pair: Node) -> None:
    """Iterative: nesting is the file's, not ours."""
    todo = [(above, pair)]
    while todo:
        path, node = todo.pop()
        if len(path) > DEEPEST:
            continue
        if node.type == "pair":
            todo += _pair_parts(positions, path, node)
        elif node.type == "array":
            todo += _elements(positions, path, node)
        else:
            todo += [(path, child) for child in node.named_children if child.type == "pair"]


def _elements(positions: Positions, path: KeyPath, array: Node) -> list[tuple[KeyPath, Node]]:
    values = [child for child in array.named_children if child.type != "comment"]
    _note_comments(positions, array)
    for index, child in enumerate(values):
        _note(positions, (*path, index), value=child, table=_span(child))
    nested = {"array", "inline_table"}
    return [((*path, i), child) for i, child in enumerate(values) if child.type in nested]


def _pair_parts(positions: Positions, above: KeyPath, pair: Node) -> list[tuple[KeyPath, Node]]:
    parts = pair.named_children
    if len(parts) < 2 or parts[0].type not in _KEYS:
        return []
    _note_comments(positions, pair)
    leaves, value, path = _leaves(parts[0]), parts[1], above
    for leaf in leaves[:DEEPEST]:
        path = (*path, _name(leaf))
        _note(positions, path, key=leaf, table=_span(leaves[0]))
    if len(leaves) > DEEPEST:
        return []
    _note(positions, path, value=value)
    return [(path, value)] if value.type in {"array", "inline_table"} else []


def _note(
    positions: Positions,
    path: KeyPath,
    *,
    key: Node | None = None,
    value: Node | None = None,
    table: Span | None = None,
) -> None:
    place = positions.places.setdefault(path, Place())
    place.key = place.key or (_span(key) if key else None)
    place.value = place.value or (_span(value) if value else None)
    place.table = place.table or table


def _note_comments(positions: Positions, node: Node) -> None:
    positions.comments += [_span(c) for c in node.named_children if c.type == "comment"]


def _leaves(key: Node) -> list[Node]:
    """The parts of a dotted key, in order."""
    found: list[Node] = []
    todo = [key]
    while todo:
        node = todo.pop()
        if node.type == "dotted_key":
            todo += reversed(node.named_children)
        else:
            found.append(node)
    return found


def _name(leaf: Node) -> str:
    text = (leaf.text or b"").decode(errors="replace")
    if leaf.type == "bare_key":
        return text
    return next(iter(tomllib.loads(f"{text} = 0")), text)


def _span(node: Node) -> Span:
    return Span(node.start_byte, node.end_byte)
