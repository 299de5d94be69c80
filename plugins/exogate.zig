//! What a tool written in Zig needs to speak with the gateway: texts in and out by the canonical
//! ABI, the host's functions, JSON, and refusals that a model can act on.
//!
//! A tool's root file has `pub const describe: []const u8` (JSON text), `pub fn call(Call)
//! Failed![]const u8` (JSON text) and `comptime { exogate.serve(@This()); }`. A channel adapter has,
//! instead of `call`, `pub fn parse(Object) Failed![]const u8` and `pub fn format(Object)
//! Failed![]const u8`, and `comptime { exogate.serveChannel(@This()); }`.
const std = @import("std");

pub const Object = std.json.ObjectMap;
pub const Value = std.json.Value;

/// `Refused`: the sentence for the model was left by `refuse`.
pub const Failed = error{ Refused, OutOfMemory };

// ---------------------------------------------------------------------------------- memory
// An instance lives for one call, so memory is handed out in order and given back all at once, or
// down to a `mark`.
extern var __heap_base: u8;
var used: usize = 0;

pub const allocator = std.mem.Allocator{
    .ptr = undefined,
    .vtable = &.{ .alloc = take, .resize = resize, .remap = remap, .free = free },
};

pub fn mark() usize {
    return used;
}

/// Everything allocated since then is gone.
pub fn release(to: usize) void {
    used = to;
}

fn take(_: *anyopaque, len: usize, alignment: std.mem.Alignment, _: usize) ?[*]u8 {
    if (used == 0) used = @intFromPtr(&__heap_base);
    const start = alignment.forward(used);
    if (!reaches(start, len)) return null;
    used = start + len;
    return @ptrFromInt(start);
}

fn reaches(start: usize, len: usize) bool {
    const page = 65536;
    const end = @as(u64, start) + len;
    const have = @as(u64, @wasmMemorySize(0)) * page;
    if (end <= have) return true;
    // A little more than needed, so that small steps do not each grow the memory.
    const short = std.math.divCeil(u64, end - have, page) catch unreachable;
    if (short > 65536) return false;
    if (@wasmMemoryGrow(0, @intCast(@max(short, 16))) >= 0) return true;
    return @wasmMemoryGrow(0, @intCast(short)) >= 0;
}

fn resize(_: *anyopaque, memory: []u8, _: std.mem.Alignment, len: usize, _: usize) bool {
    const start = @intFromPtr(memory.ptr);
    const is_last = start + memory.len == used;
    if (len > memory.len and !(is_last and reaches(start, len))) return false;
    if (is_last) used = start + len;
    return true;
}

fn remap(this: *anyopaque, memory: []u8, alignment: std.mem.Alignment, len: usize, at: usize) ?[*]u8 {
    return if (resize(this, memory, alignment, len, at)) memory.ptr else null;
}

fn free(this: *anyopaque, memory: []u8, alignment: std.mem.Alignment, at: usize) void {
    _ = resize(this, memory, alignment, 0, at);
}

fn realloc(old: ?[*]u8, old_len: usize, alignment: usize, len: usize) callconv(.c) ?[*]u8 {
    const aligned = std.mem.Alignment.fromByteUnits(alignment);
    const new = take(undefined, len, aligned, 0) orelse @trap();
    if (old) |bytes| @memcpy(new[0..@min(old_len, len)], bytes[0..@min(old_len, len)]);
    return new;
}

// --------------------------------------------------------------------------------- exports
/// An empty slice of an allocator's may point anywhere; the host takes no address outside of memory.
fn inMemory(text: []const u8) [*]const u8 {
    return if (text.len == 0) "" else text.ptr;
}

const Text = extern struct {
    ptr: [*]const u8 = "",
    len: usize = 0,

    fn of(text: []const u8) Text {
        return .{ .ptr = inMemory(text), .len = text.len };
    }
    fn slice(self: Text) []const u8 {
        return self.ptr[0..self.len];
    }
};

/// A `result<string, string>` in memory.
const Answer = extern struct { tag: u8 = 0, text: Text = .{} };

/// Makes the exports of a tool.
pub fn serve(comptime plugin: type) void {
    const Exports = struct {
        var text: Text = .{};
        var answer: Answer = .{};

        fn describe() callconv(.c) *const Text {
            text = .of(plugin.describe);
            return &text;
        }
        fn handle(ptr: [*]const u8, len: usize) callconv(.c) *const Answer {
            if (respond(plugin, ptr[0..len])) |output| {
                answer = .{ .text = .of(output) };
            } else |failure| {
                answer = .{ .tag = 1, .text = .of(switch (failure) {
                    error.Refused => refusal,
                    error.OutOfMemory => "This needs more memory than the tool may use; ask for less at once.",
                }) };
            }
            return &answer;
        }
        fn after(_: *const anyopaque) callconv(.c) void {
            used = 0;
        }
    };
    @export(&realloc, .{ .name = "cabi_realloc" });
    @export(&Exports.describe, .{ .name = "describe" });
    @export(&Exports.handle, .{ .name = "handle-tool-call" });
    @export(&Exports.after, .{ .name = "cabi_post_handle-tool-call" });
}

/// Makes the exports of a channel adapter.
pub fn serveChannel(comptime plugin: type) void {
    const Exports = struct {
        var text: Text = .{};

        fn describe() callconv(.c) *const Text {
            text = .of(plugin.describe);
            return &text;
        }
    };
    @export(&realloc, .{ .name = "cabi_realloc" });
    @export(&Exports.describe, .{ .name = "describe" });
    translates("parse-incoming", plugin.parse);
    translates("format-outgoing", plugin.format);
}

fn translates(comptime name: []const u8, comptime function: fn (Object) Failed![]const u8) void {
    const Exports = struct {
        var answer: Answer = .{};

        fn translate(ptr: [*]const u8, len: usize) callconv(.c) *const Answer {
            if (attempt(ptr[0..len])) |output| {
                answer = .{ .text = .of(output) };
            } else |failure| {
                answer = .{ .tag = 1, .text = .of(switch (failure) {
                    error.Refused => refusal,
                    error.OutOfMemory => "This needs more memory than the adapter may use.",
                }) };
            }
            return &answer;
        }
        fn attempt(input: []const u8) Failed![]const u8 {
            return function(objectOf(try parse(input)));
        }
        fn after(_: *const anyopaque) callconv(.c) void {
            used = 0;
        }
    };
    @export(&Exports.translate, .{ .name = name });
    @export(&Exports.after, .{ .name = "cabi_post_" ++ name });
}

fn respond(comptime plugin: type, input: []const u8) Failed![]const u8 {
    const given = try parse(input);
    const whole = if (given == .object) given.object else return refuse("The input is no object.", .{});
    return plugin.call(.{
        .tool = textOf(whole.get("tool")) orelse "",
        .arguments = objectOf(whole.get("arguments")),
        .config = objectOf(whole.get("config")),
    });
}

// -------------------------------------------------------------------------------- arguments
pub const Call = struct {
    tool: []const u8,
    arguments: Object,
    config: Object,

    pub fn is(self: Call, name: []const u8) bool {
        return std.mem.eql(u8, self.tool, name);
    }

    pub fn text(self: Call, name: []const u8) Failed![]const u8 {
        return try self.optionalText(name) orelse refuse("The argument {s} is missing.", .{name});
    }

    pub fn optionalText(self: Call, name: []const u8) Failed!?[]const u8 {
        const value = self.arguments.get(name) orelse return null;
        if (value == .null) return null;
        return textOf(value) orelse refuse("The argument {s} has to be a text.", .{name});
    }

    pub fn number(self: Call, name: []const u8, default: f64) Failed!f64 {
        return switch (self.arguments.get(name) orelse .null) {
            .null => default,
            .integer => |whole| @floatFromInt(whole),
            .float => |float| float,
            else => refuse("The argument {s} has to be a number.", .{name}),
        };
    }

    /// Within `least` and `most`, whatever was asked.
    pub fn count(self: Call, name: []const u8, default: u32, most: u32) Failed!u32 {
        const asked = try self.number(name, @floatFromInt(default));
        if (!(asked >= 1)) return refuse("The argument {s} has to be at least 1.", .{name});
        return @intFromFloat(@min(asked, @as(f64, @floatFromInt(most))));
    }

    pub fn unknown(self: Call) Failed {
        return refuse("There is no tool {s} here.", .{self.tool});
    }
};

pub fn textOf(value: ?Value) ?[]const u8 {
    return if (value) |given| (if (given == .string) given.string else null) else null;
}

pub fn objectOf(value: ?Value) Object {
    return if (value) |given| (if (given == .object) given.object else .empty) else .empty;
}

// ------------------------------------------------------------------------------------- texts
var refusal: []const u8 = "";

/// Leaves a sentence that tells the model what is wrong and what to do.
pub fn refuse(comptime format: []const u8, args: anytype) Failed {
    refusal = try print(format, args);
    return error.Refused;
}

pub fn print(comptime format: []const u8, args: anytype) error{OutOfMemory}![]const u8 {
    return std.fmt.allocPrint(allocator, format, args);
}

pub fn parse(text: []const u8) Failed!Value {
    return std.json.parseFromSliceLeaky(Value, allocator, text, .{}) catch |failure| switch (failure) {
        error.OutOfMemory => error.OutOfMemory,
        else => refuse("What came in is not valid JSON.", .{}),
    };
}

/// Optional fields that are null are left out.
pub fn stringify(value: anytype) error{OutOfMemory}![]const u8 {
    return std.json.Stringify.valueAlloc(allocator, value, .{ .emit_null_optional_fields = false });
}

// ---------------------------------------------------------------------- the host's functions
pub const Level = enum(u32) { debug, info, warn, @"error" };

pub fn log(level: Level, message: []const u8) void {
    const imported = struct {
        extern "exogate:plugin/log@1.0.0" fn write(level: Level, ptr: [*]const u8, len: usize) void;
    };
    imported.write(level, inMemory(message), message.len);
}

pub const clock = struct {
    extern "exogate:plugin/clock@1.0.0" fn @"now-ms"() u64;

    pub fn now_ms() u64 {
        return @"now-ms"();
    }
};

pub const random = struct {
    extern "exogate:plugin/random@1.0.0" fn @"bytes-hex"(count: u32, into: *Text) void;

    pub fn hex(count: u32) []const u8 {
        var into: Text = .{};
        @"bytes-hex"(count, &into);
        return into.slice();
    }
};

pub const http = struct {
    extern "exogate:plugin/http@1.0.0" fn request(ptr: [*]const u8, len: usize, into: *Answer) void;

    /// The request and its response are JSON texts; a refusal says what the host said.
    pub fn send(json: []const u8) Failed![]const u8 {
        var into: Answer = .{};
        request(inMemory(json), json.len, &into);
        return outcome(into);
    }
};

pub const host = struct {
    extern "exogate:plugin/host@1.0.0" fn call(name: [*]const u8, name_len: usize, input: [*]const u8, input_len: usize, into: *Answer) void;

    pub fn ask(name: []const u8, json: []const u8) Failed![]const u8 {
        var into: Answer = .{};
        call(inMemory(name), name.len, inMemory(json), json.len, &into);
        return outcome(into);
    }
};

pub const store = struct {
    const Found = extern struct { tag: u8 = 0, body: extern union { found: Answer, problem: Text } = .{ .problem = .{} } };
    const module = "exogate:plugin/store@1.0.0";

    const imported = struct {
        extern "exogate:plugin/store@1.0.0" fn get(ns: [*]const u8, ns_len: usize, key: [*]const u8, key_len: usize, into: *Found) void;
        extern "exogate:plugin/store@1.0.0" fn set(ns: [*]const u8, ns_len: usize, key: [*]const u8, key_len: usize, value: [*]const u8, value_len: usize, into: *Answer) void;
        extern "exogate:plugin/store@1.0.0" fn delete(ns: [*]const u8, ns_len: usize, key: [*]const u8, key_len: usize, into: *Answer) void;
        extern "exogate:plugin/store@1.0.0" fn list(ns: [*]const u8, ns_len: usize, prefix: [*]const u8, prefix_len: usize, into: *Answer) void;
    };

    pub fn get(namespace: []const u8, key: []const u8) Failed!?[]const u8 {
        var into: Found = .{};
        imported.get(inMemory(namespace), namespace.len, inMemory(key), key.len, &into);
        if (into.tag != 0) return refuse("{s}", .{into.body.problem.slice()});
        return if (into.body.found.tag == 0) null else into.body.found.text.slice();
    }

    pub fn set(namespace: []const u8, key: []const u8, value: []const u8) Failed!void {
        var into: Answer = .{};
        imported.set(inMemory(namespace), namespace.len, inMemory(key), key.len, inMemory(value), value.len, &into);
        if (into.tag != 0) return refuse("{s}", .{into.text.slice()});
    }

    pub fn delete(namespace: []const u8, key: []const u8) Failed!void {
        var into: Answer = .{};
        imported.delete(inMemory(namespace), namespace.len, inMemory(key), key.len, &into);
        if (into.tag != 0) return refuse("{s}", .{into.text.slice()});
    }

    /// The keys that begin so.
    pub fn list(namespace: []const u8, prefix: []const u8) Failed![]const Value {
        var into: Answer = .{};
        imported.list(inMemory(namespace), namespace.len, inMemory(prefix), prefix.len, &into);
        const keys = try parse(try outcome(into));
        return if (keys == .array) keys.array.items else &.{};
    }
};

fn outcome(answer: Answer) Failed![]const u8 {
    if (answer.tag != 0) return refuse("{s}", .{answer.text.slice()});
    return answer.text.slice();
}
