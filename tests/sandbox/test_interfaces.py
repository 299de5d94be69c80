"""What the code compares guests with is what the published WIT says."""

import re
from pathlib import Path

from gateway.sandbox import protocol as worlds
from gateway.sandbox.protocol import INTERFACES, PACKAGE, VERSION, import_name, interface_of

WIT = (Path(worlds.__file__).parent / "wit" / "exogate-plugin.wit").read_text(encoding="utf-8")
FUNCTION = re.compile(r"([a-z-]+): func\(([^)]*)\)(?: -> ([^;]+))?;")
LEVELS = re.findall(r"enum level \{ ([a-z, ]+) \}", WIT)[0].replace(" ", "")


def signature(parameters: str, result: str) -> str:
    types = [one.split(":")[1].strip() for one in parameters.split(",") if one]
    type_text = ",".join(f"enum{{{LEVELS}}}" if one == "level" else one for one in types)
    return f"({type_text})" + (f"->{result.replace(' ', '')}" if result else "")


def functions(name: str, word: str) -> dict[str, str]:
    found = re.search(rf"{word} {name}\s*\{{(.*?)\n?\}}\s*(?://|interface|world|$)", WIT, re.DOTALL)
    assert found is not None, name
    return {one[0]: signature(one[1], one[2]) for one in FUNCTION.findall(found[1])}


def test_every_interface_is_published_as_it_is_compared() -> None:
    assert WIT.startswith(f"package {PACKAGE}@{VERSION};")
    for name, offered in INTERFACES.items():
        assert functions(name, "interface") == offered


def test_only_our_interfaces_in_our_version_are_ours() -> None:
    for name in INTERFACES:
        assert interface_of(import_name(name)) == name
    for other in ("exogate:plugin/log@1.0.1", "exogate:plugin/log", "exogate:plugin2/log@1.0.0"):
        assert interface_of(other) is None
    assert interface_of("exogate:plugin/shell@1.0.0") is None
