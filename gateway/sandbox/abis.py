"""Interfaces of others that are spoken here, as code compares them."""

# Core modules of any Extism PDK.
EXTISM, EXTISM_USER, WASI_CORE = "extism:host/env", "extism:host/user", "wasi_snapshot_preview1"
_MAKES, _TAKES, _TELLS = "(i64)->i64", "(i64)", "()->i64"
EXTISM_FUNCTIONS = {
    # its memory, which both sides see
    "alloc": _MAKES,
    "free": _TAKES,
    "length": _MAKES,
    "length_unsafe": _MAKES,
    "load_u8": "(i64)->i32",
    "load_u64": _MAKES,
    "store_u8": "(i64,i32)",
    "store_u64": "(i64,i64)",
    "input_offset": _TELLS,
    "input_length": _TELLS,
    "input_load_u8": "(i64)->i32",
    "input_load_u64": _MAKES,
    "output_set": "(i64,i64)",
    "output_offset": _TELLS,
    "output_length": _TELLS,
    "error_set": _TAKES,
    "error_get": _TELLS,
    "reset": "()",
    # the host
    "config_get": _MAKES,
    "var_get": _MAKES,
    "var_set": "(i64,i64)",
    "http_request": "(i64,i64)->i64",
    "http_status_code": "()->i32",
    "http_headers": _TELLS,
    "log_trace": _TAKES,
    "log_debug": _TAKES,
    "log_info": _TAKES,
    "log_warn": _TAKES,
    "log_error": _TAKES,
    "get_log_level": "()->i32",
}
# A function of the operator: a text in, and maybe one out.
EXTISM_USER_FUNCTIONS = (_MAKES, _TAKES)
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
