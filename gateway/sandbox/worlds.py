"""The WIT package `exogate:plugin`, as code compares it: wit/exogate-plugin.wit in another form."""

PACKAGE, VERSION = "exogate:plugin", "1.0.0"

_LEVEL = "enum{debug,info,warn,error}"
# interface -> function -> signature
INTERFACES = {
    "log": {"write": f"({_LEVEL},string)"},
    "http": {"request": "(string)->result<string,string>"},
    "store": {
        "get": "(string,string)->result<option<string>,string>",
        "set": "(string,string,string)->result<_,string>",
        "delete": "(string,string)->result<_,string>",
        "list": "(string,string)->result<string,string>",
    },
    "clock": {"now-ms": "()->u64"},
    "random": {"bytes-hex": "(u32)->string"},
    "host": {"call": "(string,string)->result<string,string>"},
}
_TEXT_TO_RESULT = "(string)->result<string,string>"
# kind of plugin -> export -> signature
WORLDS = {
    "tool": {"describe": "()->string", "handle-tool-call": _TEXT_TO_RESULT},
    "channel": {
        "describe": "()->string",
        "parse-incoming": _TEXT_TO_RESULT,
        "format-outgoing": _TEXT_TO_RESULT,
    },
}


def import_name(interface: str) -> str:
    return f"{PACKAGE}/{interface}@{VERSION}"


def interface_of(name: str) -> str | None:
    """Ours, in our version; None if an import is another's."""
    package, _, rest = name.partition("/")
    interface, _, version = rest.partition("@")
    is_ours = package == PACKAGE and version == VERSION and interface in INTERFACES
    return interface if is_ours else None
