//! Reading JSON of any shape, as platforms send it: what is not of the kind that is meant is not there.
const std = @import("std");
const exogate = @import("exogate");

const Object = exogate.Object;
const Value = exogate.Value;

pub fn is(object: Object, name: []const u8, value: []const u8) bool {
    return equal(exogate.textOf(object.get(name)), value);
}

/// Nothing equals nothing.
pub fn equal(one: ?[]const u8, other: ?[]const u8) bool {
    return std.mem.eql(u8, one orelse return false, other orelse return false);
}

pub fn truth(value: ?Value) bool {
    return if (value) |given| given == .bool and given.bool else false;
}

pub fn numberOf(value: ?Value) ?i64 {
    return if (value) |given| (if (given == .integer) given.integer else null) else null;
}

pub fn itemsOf(value: ?Value) []const Value {
    return if (value) |given| (if (given == .array) given.array.items else &.{}) else &.{};
}

pub fn write(out: *std.ArrayList(u8), comptime form: []const u8, args: anytype) error{OutOfMemory}!void {
    try out.appendSlice(exogate.allocator, try exogate.print(form, args));
}

/// Somebody else wrote it: it is no command of whoever forwards it.
pub fn forwarded(said: []const u8) error{OutOfMemory}![]const u8 {
    const is_command = std.mem.startsWith(u8, std.mem.trimStart(u8, said, " \t\r\n"), "/");
    return if (is_command) try exogate.print("Forwarded: {s}", .{said}) else said;
}
