//! Counts the words and characters of a text.
const std = @import("std");
const exogate = @import("exogate.zig");

/// What the gateway and the model are told about this plugin.
pub const describe =
    \\{"name": "wordcount", "version": "0.1.0", "kind": "tool",
    \\ "description": "Counts the words and characters of a text.",
    \\ "tools": [{"name": "wordcount", "category": "meta",
    \\   "description": "Counts the words and characters of a text.",
    \\   "parameters": {"type": "object",
    \\     "properties": {"text": {"type": "string", "description": "the text to count"}},
    \\     "required": ["text"], "additionalProperties": false},
    \\   "annotations": {"readOnlyHint": true, "idempotentHint": true}}]}
;

comptime {
    exogate.serve(@This());
}

/// Gives JSON back. What `exogate.refuse` is given is shown to the model: say what is wrong and
/// what to do.
pub fn call(given: exogate.Call) exogate.Failed![]const u8 {
    const text = try given.text("text");
    var words: usize = 0;
    var parts = std.mem.tokenizeAny(u8, text, &std.ascii.whitespace);
    while (parts.next()) |_| words += 1;
    exogate.log(.info, try exogate.print("counted {d} words", .{words}));
    const characters = std.unicode.utf8CountCodepoints(text) catch text.len;
    return exogate.stringify(.{ .words = words, .characters = characters });
}
