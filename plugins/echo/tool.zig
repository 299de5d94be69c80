//! Says back what it was told.
const exogate = @import("exogate");

pub const describe =
    \\{"name": "echo", "version": "1.0.0", "kind": "tool",
    \\ "description": "Says back what it was told.",
    \\ "tools": [{"name": "echo", "category": "meta",
    \\   "description": "Gives the same text back, unchanged. Good for trying whether tools work.",
    \\   "parameters": {"type": "object",
    \\     "properties": {"text": {"type": "string", "description": "what to say back"}},
    \\     "required": ["text"], "additionalProperties": false},
    \\   "annotations": {"title": "Echo", "readOnlyHint": true, "idempotentHint": true, "openWorldHint": false}}]}
;

comptime {
    exogate.serve(@This());
}

pub fn call(given: exogate.Call) exogate.Failed![]const u8 {
    if (!given.is("echo")) return given.unknown();
    return exogate.stringify(try given.text("text"));
}
