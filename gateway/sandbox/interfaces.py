"""The signatures of the interfaces of guests: the WIT package of exogate, Extism, near:agent."""

# --------------------------------------------------- the same content as wit/exogate-plugin.wit
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
    """Returns the name of an import of exogate's package in this version; None for other imports."""
    package, _, rest = name.partition("/")
    interface, _, version = rest.partition("@")
    is_ours = package == PACKAGE and version == VERSION and interface in INTERFACES
    return interface if is_ours else None


# --------------------------------------------------------------------------- foreign interfaces
# Core modules of any Extism PDK.
EXTISM, EXTISM_USER, WASI_CORE = "extism:host/env", "extism:host/user", "wasi_snapshot_preview1"
# signature -> functions: of the shared memory and of the host
_EXTISM = {
    "(i64)->i64": "alloc length length_unsafe load_u64 input_load_u64 config_get var_get",
    "(i64)": "free error_set log_trace log_debug log_info log_warn log_error",
    "()->i64": "input_offset input_length output_offset output_length error_get http_headers",
    "(i64)->i32": "load_u8 input_load_u8",
    "(i64,i32)": "store_u8",
    "(i64,i64)": "store_u64 output_set var_set",
    "()": "reset",
    "(i64,i64)->i64": "http_request",
    "()->i32": "http_status_code get_log_level",
}
EXTISM_FUNCTIONS = {
    name: signature for signature, names in _EXTISM.items() for name in names.split()
}
# A function of the operator takes a text and may return one.
EXTISM_USER_FUNCTIONS = ("(i64)->i64", "(i64)")
EXTISM_EXPORTS = ("()", "()->i32")

# Components that export near:agent/tool.
NEAR_TOOL, NEAR_HOST = "near:agent/tool@0.4.", "near:agent/host@0.4."
_FAILURES = (
    "enum{auth-required,input,output-too-large,executor,network-denied,client,operation-failed}"
)
_FAILURE = f"kind:{_FAILURES},code:option<string>,message:option<string>"
NEAR_FUNCTIONS = {
    "log": "(enum{trace,debug,info,warn,error},string)",
    "now-millis": "()->u64",
    "workspace-read": "(string)->option<string>",
    "http-request": (
        "(string,string,string,option<list<u8>>,option<u32>)"
        "->result<record{status:u16,headers-json:string,body:list<u8>},"
        f"record{{{_FAILURE},request-sent:bool}}>"
    ),
    "tool-invoke": "(string,string)->result<string,string>",
    "secret-exists": "(string)->bool",
}
NEAR_EXPORTS = {
    "execute": (
        "(record{params:string,context:option<string>})"
        f"->variant{{success(string),failure(record{{{_FAILURE}}})}}"
    ),
    "schema": "()->string",
    "description": "()->string",
}
