//! Which rooms are direct chats: a homeserver tells it once, with the invitation, so it is kept in the
//! channel's state. Direct is what the inviter says there, and only while nobody else comes in.
const std = @import("std");
const exogate = @import("exogate");

const Failed = error{OutOfMemory};

/// A room and its inviter by their digests: of a fixed length, and nobody can find two alike.
const half = 12;
const Entry = [2 * half]u8;

/// All of them fit into the 64 KiB of a state; the oldest go first. Strangers can make us be invited,
/// but not join, so it is only the short list that they can fill.
const most_joined = 2_600;
const most_invited = 64;

pub const Rooms = struct {
    waiting: std.ArrayList(Entry),
    direct: std.ArrayList(Entry),

    /// What cannot be read is as nothing: the rooms count as groups then.
    pub fn read(state: []const u8) Failed!Rooms {
        const line = std.mem.indexOfScalar(u8, state, '\n') orelse return .{ .waiting = .empty, .direct = .empty };
        return .{ .waiting = try entries(state[0..line]), .direct = try entries(state[line + 1 ..]) };
    }

    pub fn written(self: Rooms) Failed![]const u8 {
        if (self.waiting.items.len + self.direct.items.len == 0) return "";
        const waiting = std.mem.sliceAsBytes(newest(self.waiting.items, most_invited));
        return exogate.print("{s}\n{s}", .{ waiting, std.mem.sliceAsBytes(newest(self.direct.items, most_joined)) });
    }

    pub fn invited(self: *Rooms, room: []const u8, inviter: []const u8) Failed!void {
        self.left(room);
        try self.waiting.append(exogate.allocator, entryOf(room, inviter));
    }

    pub fn joined(self: *Rooms, room: []const u8) Failed!void {
        const at = find(self.waiting.items, room) orelse return;
        try self.direct.append(exogate.allocator, self.waiting.orderedRemove(at));
    }

    /// Somebody other than the inviter: it is a direct chat no longer.
    pub fn seen(self: *Rooms, room: []const u8, who: []const u8) Failed!void {
        const entry = entryOf(room, who);
        for ([_]*std.ArrayList(Entry){ &self.waiting, &self.direct }) |list| {
            const at = find(list.items, room) orelse continue;
            if (!std.mem.eql(u8, &list.items[at], &entry)) _ = list.orderedRemove(at);
        }
    }

    pub fn left(self: *Rooms, room: []const u8) void {
        for ([_]*std.ArrayList(Entry){ &self.waiting, &self.direct }) |list| {
            if (find(list.items, room)) |at| _ = list.orderedRemove(at);
        }
    }

    pub fn isDirect(self: Rooms, room: []const u8, sender: []const u8) bool {
        const at = find(self.direct.items, room) orelse return false;
        return std.mem.eql(u8, &self.direct.items[at], &entryOf(room, sender));
    }
};

fn entries(text: []const u8) Failed!std.ArrayList(Entry) {
    var list: std.ArrayList(Entry) = .empty;
    const whole = text[0 .. text.len - text.len % @sizeOf(Entry)];
    try list.appendSlice(exogate.allocator, std.mem.bytesAsSlice(Entry, whole));
    return list;
}

fn newest(list: []const Entry, most: usize) []const Entry {
    return list[list.len -| most..];
}

fn find(list: []const Entry, room: []const u8) ?usize {
    const wanted = digest(&.{room});
    for (list, 0..) |entry, at| if (std.mem.eql(u8, entry[0..half], &wanted)) return at;
    return null;
}

fn entryOf(room: []const u8, inviter: []const u8) Entry {
    return digest(&.{room}) ++ digest(&.{ room, "\x00", inviter });
}

/// 72 bits as text.
fn digest(parts: []const []const u8) [half]u8 {
    var hash = std.crypto.hash.sha2.Sha256.init(.{});
    for (parts) |part| hash.update(part);
    var text: [half]u8 = undefined;
    _ = std.base64.url_safe_no_pad.Encoder.encode(&text, hash.finalResult()[0..9]);
    return text;
}
