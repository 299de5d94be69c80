"""Programs that are MCP servers, as one source each: run with `python -c`."""

GOOD = """
import os, json, subprocess, sys
import anyio, mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

NAMES = ["env", "echo", "fork", "die", "pid", "wait", "many"]

def text(said):
    return types.CallToolResult(content=[types.TextContent(type="text", text=said)])

async def list_tools(ctx, params):
    shape = {"type": "object", "properties": {}}
    return types.ListToolsResult(tools=[types.Tool(name=n, input_schema=shape) for n in NAMES])

async def call_tool(ctx, params):
    match params.name:
        case "env":
            return text(json.dumps(dict(os.environ)))
        case "fork":
            command = [sys.executable, "-c", "import time; time.sleep(60)"]
            return text(str(subprocess.Popen(command).pid))
        case "die":
            os._exit(3)
        case "pid":
            return text(str(os.getpid()))
        case "many":
            return types.CallToolResult(content=[], structured_content={"a": [[]] * 100_000})
        case "wait":
            await anyio.sleep_forever()
    return text(str(params.meta))

async def main():
    print("a secret: " + os.environ.get("TOKEN", ""), file=sys.stderr, flush=True)
    async with stdio_server() as (read, write):
        server = Server("child", version="1", on_list_tools=list_tools, on_call_tool=call_tool)
        await server.run(read, write, server.create_initialization_options())

anyio.run(main)
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
