"""Programs that are MCP servers, as one source each: run with `python -c`."""

# The SDK's own server.
OF_SDK = """
import os, json, sys
import anyio, mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

async def list_tools(ctx, params):
    shape = {"type": "object", "properties": {}}
    return types.ListToolsResult(tools=[types.Tool(name="env", input_schema=shape)])

async def call_tool(ctx, params):
    text = json.dumps(dict(os.environ))
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)])

async def main():
    print("a secret: " + os.environ.get("TOKEN", ""), file=sys.stderr, flush=True)
    async with stdio_server() as (read, write):
        server = Server("child", version="1", on_list_tools=list_tools, on_call_tool=call_tool)
        await server.run(read, write, server.create_initialization_options())

anyio.run(main)
"""
# Without the SDK, which takes half a second to import; it answers one request after the other.
GOOD = """
import json, os, subprocess, sys

NAMES = ["fork", "die", "pid", "wait", "many"]

def text(said):
    return {"content": [{"type": "text", "text": said}]}

def called(name):
    match name:
        case "fork":
            command = [sys.executable, "-c", "import time; time.sleep(60)"]
            return text(str(subprocess.Popen(command).pid))
        case "die":
            os._exit(3)
        case "pid":
            return text(str(os.getpid()))
        case "many":
            return {"content": [], "structuredContent": {"a": [[]] * 100_000}}

def answered(method, params):
    match method:
        case "initialize":
            about = {"serverInfo": {"name": "child", "version": "1"}, "capabilities": {"tools": {}}}
            return {"protocolVersion": params["protocolVersion"], **about}
        case "tools/list":
            return {"tools": [{"name": n, "inputSchema": {"type": "object"}} for n in NAMES]}
        case "tools/call":
            return called(params["name"])

for line in sys.stdin:
    asked = json.loads(line)
    method, params = asked["method"], asked.get("params", {})
    if "id" not in asked or params.get("name") == "wait":
        continue
    result = answered(method, params)
    unknown = {"error": {"code": -32601, "message": method}}
    told = {"result": result} if result is not None else unknown
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **told}), flush=True)
"""
STUBBORN = f"""
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
{GOOD}
time.sleep(600)
"""
SILENT = "import sys\nfor line in sys.stdin: pass\n"
LONG_LINE = "import sys\nwhile True: sys.stdout.write('x' * 1_000_000)\n"
NOISY = "print('Welcome!', flush=True)\n" + GOOD
