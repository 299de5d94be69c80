//! Matrix: what a homeserver pushes to an application service becomes messages; Markdown becomes HTML.
const std = @import("std");
const exogate = @import("exogate");
const markdown = @import("markdown");
const rooms = @import("rooms");
const values = @import("values");

const Object = exogate.Object;
const Failed = exogate.Failed;
const objectOf = exogate.objectOf;
const textOf = exogate.textOf;
const equal = values.equal;
const is = values.is;
const write = values.write;

pub const describe =
    \\{"name": "matrix", "version": "1.0.0", "kind": "channel", "channel": "matrix",
    \\ "description": "Talks with people on Matrix, as an application service of their homeserver.",
    \\ "transports": [{"type": "webhook", "methods": ["PUT", "POST"],
    \\   "paths": ["/_matrix/app/v1/transactions/*", "/_matrix/app/v1/ping"],
    \\   "max_body_bytes": 4194304}],
    \\ "verify": {"type": "token", "secret": "hs_token", "header": "authorization", "prefix": "Bearer ",
    \\            "missing_status": 401, "wrong_status": 403},
    \\ "outbound": {"secrets": ["as_token"], "message_id": "event_id", "error": "errcode",
    \\              "retry_errors": ["M_LIMIT_EXCEEDED"], "idempotency": true,
    \\              "edits": true, "edit_every_s": 2.0, "edit_every_s_group": 5.0, "typing_every_s": 20.0},
    \\ "limits": {"text": 12000, "unit": "bytes"},
    \\ "secrets": ["as_token"],
    \\ "needs": ["user_id", "api_base"]}
;

comptime {
    exogate.serveChannel(@This());
}

// -------------------------------------------------------------------------------- what came in
const File = struct { url: ?[]const u8, name: ?[]const u8, mime: ?[]const u8, size: ?i64 };

const Message = struct {
    peer: []const u8,
    kind: enum { direct, group },
    sender: struct { id: []const u8 },
    text: []const u8,
    platform_id: []const u8,
    thread: ?[]const u8 = null,
    timestamp: ?[]const u8,
    reply_to: ?[]const u8 = null,
    mentions_me: bool = false,
    attachments: []const File = &.{},
    invites: ?bool = null,
    answer: struct { join: ?bool = null } = .{},
};

pub fn parse(event: Object) Failed![]const u8 {
    const body = objectOf(try exogate.parse(textOf(event.get("body")) orelse ""));
    const before = textOf(event.get("state")) orelse "";
    var reader = Reader{
        .me = try userId(event),
        .known = try rooms.Rooms.read(before),
    };
    for (values.itemsOf(body.get("events"))) |one| try reader.take(objectOf(one));
    const after = try reader.known.written();
    return exogate.stringify(.{
        .messages = reader.messages.items,
        .state = if (std.mem.eql(u8, before, after)) null else after,
        .reply = .{ .headers = .{ .@"content-type" = "application/json" }, .body = "{}" },
    });
}

/// What people write is in the events: nothing of it may keep the others from being read.
const Reader = struct {
    me: []const u8,
    known: rooms.Rooms,
    messages: std.ArrayList(Message) = .empty,

    fn take(self: *Reader, event: Object) Failed!void {
        const content = objectOf(event.get("content"));
        const origin = Origin{
            .id = idOf(event.get("event_id")) orelse return,
            .room = idOf(event.get("room_id")) orelse return,
            .sender = idOf(event.get("sender")) orelse return,
            .timestamp = if (values.numberOf(event.get("origin_server_ts"))) |ms| try exogate.print("{d}", .{@divFloor(ms, 1000)}) else null,
        };
        if (is(event, "type", "m.room.member")) return self.member(origin, event, content);
        if (equal(origin.sender, self.me)) return;
        if (is(event, "type", "m.room.encrypted")) return self.add(origin, .{ .text = "[an encrypted message, which cannot be read here]" });
        if (is(event, "type", "m.room.message")) return self.message(origin, content);
        if (is(event, "type", "m.sticker")) return self.add(origin, .{
            .text = "",
            .attachments = try exogate.allocator.dupe(File, &.{infoOf(content, textOf(content.get("body")) orelse "sticker")}),
        });
    }

    fn message(self: *Reader, origin: Origin, content: Object) Failed!void {
        const msgtype = textOf(content.get("msgtype")) orelse return;
        // Notices are what bots write, lest they answer each other without end.
        if (std.mem.eql(u8, msgtype, "m.notice") or std.mem.eql(u8, msgtype, "m.server_notice")) return;
        const relation = objectOf(content.get("m.relates_to"));
        if (is(relation, "rel_type", "m.replace")) return;
        const body = textOf(content.get("body")) orelse return;
        const replied = objectOf(relation.get("m.in_reply_to"));
        const file = try fileOf(content, msgtype, body);
        const is_caption = file == null or (content.get("filename") != null and !is(content, "filename", body));
        const said = if (!is_caption) "" else if (replied.get("event_id") != null) withoutFallback(body) else body;
        const mentioned = self.isMentioned(content, said);
        const text = if (mentioned) withoutName(said, try self.nameIn(content, said)) else said;
        try self.add(origin, .{
            .text = if (std.mem.eql(u8, msgtype, "m.emote")) try exogate.print("* {s}", .{text}) else text,
            .thread = if (is(relation, "rel_type", "m.thread")) idOf(relation.get("event_id")) else null,
            .reply_to = if (values.truth(relation.get("is_falling_back"))) null else idOf(replied.get("event_id")),
            .mentions_me = mentioned,
            .attachments = if (file) |one| try exogate.allocator.dupe(File, &.{one}) else &.{},
        });
    }

    /// Whoever is invited is asked to talk: the answer to an invitation joins the room first, so that
    /// strangers cannot make us join.
    fn member(self: *Reader, origin: Origin, event: Object, content: Object) Failed!void {
        const who = idOf(event.get("state_key")) orelse return;
        const membership = textOf(content.get("membership")) orelse return;
        const is_in = std.mem.eql(u8, membership, "invite") or std.mem.eql(u8, membership, "join") or std.mem.eql(u8, membership, "knock");
        if (!std.mem.eql(u8, who, self.me)) {
            if (is_in) try self.known.seen(origin.room, who);
            return;
        }
        if (!is_in) return self.known.left(origin.room);
        if (membership[0] == 'j') return self.known.joined(origin.room);
        if (membership[0] != 'i' or equal(origin.sender, self.me)) return;
        const is_direct = values.truth(content.get("is_direct"));
        if (is_direct) try self.known.invited(origin.room, origin.sender);
        try self.messages.append(exogate.allocator, .{
            .peer = origin.room,
            .kind = if (is_direct) .direct else .group,
            .sender = .{ .id = origin.sender },
            .text = "[invited you to this room]",
            .platform_id = origin.id,
            .timestamp = origin.timestamp,
            .mentions_me = true,
            .invites = true,
            .answer = .{ .join = true },
        });
    }

    const Said = struct {
        text: []const u8,
        thread: ?[]const u8 = null,
        reply_to: ?[]const u8 = null,
        mentions_me: bool = false,
        attachments: []const File = &.{},
    };

    fn add(self: *Reader, origin: Origin, said: Said) Failed!void {
        try self.messages.append(exogate.allocator, .{
            .peer = origin.room,
            .kind = if (self.known.isDirect(origin.room, origin.sender)) .direct else .group,
            .sender = .{ .id = origin.sender },
            .text = said.text,
            .platform_id = origin.id,
            .thread = said.thread,
            .timestamp = origin.timestamp,
            .reply_to = said.reply_to,
            .mentions_me = said.mentions_me,
            .attachments = said.attachments,
        });
    }

    /// Clients that say whom they mean are believed; of older ones the text is all there is.
    fn isMentioned(self: *const Reader, content: Object, body: []const u8) bool {
        const given = content.get("m.mentions") orelse return names(body, self.me);
        for (values.itemsOf(objectOf(given).get("user_ids"))) |one| if (equal(textOf(one), self.me)) return true;
        return false;
    }

    /// What we are called in this message: the words of the link to us, or our id, or its own part.
    fn nameIn(self: *const Reader, content: Object, body: []const u8) Failed![]const u8 {
        const html = textOf(content.get("formatted_body")) orelse "";
        for ([_][]const u8{ self.me, try encoded(self.me) }) |id| {
            const link = try exogate.print("href=\"https://matrix.to/#/{s}\">", .{id});
            const start = (std.mem.indexOf(u8, html, link) orelse continue) + link.len;
            const end = std.mem.indexOfPos(u8, html, start, "</a>") orelse continue;
            if (end > start) return html[start..end];
        }
        if (std.mem.indexOf(u8, body, self.me) != null) return self.me;
        return std.mem.sliceTo(std.mem.trimStart(u8, self.me, "@"), ':');
    }
};

const Origin = struct { id: []const u8, room: []const u8, sender: []const u8, timestamp: ?[]const u8 };

/// An id as Matrix has them, at most 255 bytes long; relations hold whatever a person wrote.
fn idOf(value: ?exogate.Value) ?[]const u8 {
    const text = textOf(value) orelse return null;
    return if (text.len > 0 and text.len <= 255) text else null;
}

/// The whole id stands there, not the beginning of a longer one.
fn names(body: []const u8, id: []const u8) bool {
    const end = (std.mem.indexOf(u8, body, id) orelse return false) + id.len;
    return end == body.len or !(std.ascii.isAlphanumeric(body[end]) or (body[end] == '.' and end + 1 < body.len and std.ascii.isAlphanumeric(body[end + 1])));
}

/// Who is spoken to, at the beginning, is no part of what is said: `NAME: /help` is a command.
fn withoutName(body: []const u8, name: []const u8) []const u8 {
    const text = std.mem.trimStart(u8, body, " ");
    if (!std.mem.startsWith(u8, text, name)) return body;
    const rest = text[name.len..];
    const said = std.mem.trimStart(u8, rest, ":, ");
    return if (said.len > 0 and said.len < rest.len) said else body;
}

/// Older clients quote the message that is replied to above the reply.
fn withoutFallback(body: []const u8) []const u8 {
    if (!std.mem.startsWith(u8, body, "> <@") and !std.mem.startsWith(u8, body, "> * <@")) return body;
    var rest = body;
    while (std.mem.startsWith(u8, rest, ">")) {
        rest = rest[(std.mem.indexOfScalar(u8, rest, '\n') orelse return body) + 1 ..];
    }
    return std.mem.trimStart(u8, rest, "\n");
}

fn fileOf(content: Object, msgtype: []const u8, body: []const u8) Failed!?File {
    for ([_][]const u8{ "m.image", "m.file", "m.audio", "m.video" }) |one| {
        if (std.mem.eql(u8, msgtype, one)) break;
    } else return null;
    return infoOf(content, textOf(content.get("filename")) orelse body);
}

fn infoOf(content: Object, name: []const u8) File {
    const info = objectOf(content.get("info"));
    return .{
        .url = textOf(content.get("url")) orelse textOf(objectOf(content.get("file")).get("url")),
        .name = name,
        .mime = textOf(info.get("mimetype")),
        .size = values.numberOf(info.get("size")),
    };
}

// -------------------------------------------------------------------------------- what goes out
const Request = struct {
    method: []const u8 = "PUT",
    url: []const u8,
    headers: struct {
        authorization: []const u8 = "Bearer ${secret:as_token}",
        @"content-type": []const u8 = "application/json",
    } = .{},
    body: []const u8,
    idempotency: ?struct { key: []const u8 } = null,
};

/// An event has at most 65,536 bytes, with what the homeserver adds.
const most_bytes = 60_000;

pub fn format(reply: Object) Failed![]const u8 {
    const room = textOf(reply.get("peer")) orelse return exogate.refuse("No room is named.", .{});
    const there = Place{
        .base = textOf(reply.get("api_base")) orelse return exogate.refuse("Set config.api_base to the address of the homeserver.", .{}),
        .room = try encoded(room),
        .me = try encoded(try userId(reply)),
    };
    var requests: std.ArrayList(Request) = .empty;
    const key = textOf(reply.get("key")) orelse "";
    // Joining a room again does no harm.
    if (values.truth(objectOf(reply.get("answer")).get("join"))) try requests.append(exogate.allocator, .{
        .method = "POST",
        .url = try exogate.print("{s}/_matrix/client/v3/join/{s}?user_id={s}", .{ there.base, there.room, there.me }),
        .body = "{}",
        .idempotency = .{ .key = key },
    });
    if (is(reply, "do", "join")) return exogate.stringify(.{ .requests = requests.items });
    if (is(reply, "do", "typing")) {
        try requests.append(exogate.allocator, .{
            .url = try there.address("typing/", there.me),
            .body = "{\"typing\":true,\"timeout\":30000}",
        });
        return exogate.stringify(.{ .requests = requests.items });
    }
    const body = try contentOf(reply);
    if (body.len > most_bytes) return exogate.stringify(.{ .requests = &.{}, .too_long = true });
    try requests.append(exogate.allocator, .{
        .url = try there.address("send/m.room.message/", try encoded(key)),
        .body = body,
        .idempotency = .{ .key = key },
    });
    return exogate.stringify(.{ .requests = requests.items, .edit = true });
}

const Place = struct {
    base: []const u8,
    room: []const u8,
    me: []const u8,

    fn address(self: Place, what: []const u8, which: []const u8) Failed![]const u8 {
        return exogate.print("{s}/_matrix/client/v3/rooms/{s}/{s}{s}?user_id={s}", .{ self.base, self.room, what, which, self.me });
    }
};

/// `m.mentions` is empty: whatever a text says, nobody is called by it.
const Content = struct {
    msgtype: []const u8 = "m.text",
    body: []const u8,
    format: ?[]const u8 = null,
    formatted_body: ?[]const u8 = null,
    @"m.mentions": struct {} = .{},
    @"m.relates_to": ?Relation = null,
    @"m.new_content": ?Written = null,
};

const Written = struct {
    msgtype: []const u8 = "m.text",
    body: []const u8,
    format: ?[]const u8,
    formatted_body: ?[]const u8,
    @"m.mentions": struct {} = .{},
};

const Relation = struct {
    rel_type: ?[]const u8 = null,
    event_id: ?[]const u8 = null,
    is_falling_back: ?bool = null,
    @"m.in_reply_to": ?struct { event_id: []const u8 } = null,
};

fn contentOf(reply: Object) Failed![]const u8 {
    const document = try markdown.read(textOf(reply.get("text")) orelse "");
    const html = if (document.spans.len > 0) try htmlOf(document) else null;
    const form: ?[]const u8 = if (html == null) null else "org.matrix.custom.html";
    if (textOf(reply.get("edits"))) |id| return exogate.stringify(Content{
        .body = try exogate.print("* {s}", .{document.text}),
        .@"m.relates_to" = .{ .rel_type = "m.replace", .event_id = id },
        .@"m.new_content" = .{ .body = document.text, .format = form, .formatted_body = html },
    });
    return exogate.stringify(Content{
        .body = document.text,
        .format = form,
        .formatted_body = html,
        .@"m.relates_to" = relationOf(reply),
    });
}

/// In a thread the answer stays there; in a room it says what it answers.
fn relationOf(reply: Object) ?Relation {
    const answered = textOf(reply.get("reply_to"));
    if (textOf(reply.get("thread"))) |root| return .{
        .rel_type = "m.thread",
        .event_id = root,
        .is_falling_back = true,
        .@"m.in_reply_to" = .{ .event_id = answered orelse root },
    };
    const is_invitation = values.truth(objectOf(reply.get("answer")).get("join"));
    if (!values.truth(reply.get("is_group")) or is_invitation) return null;
    return .{ .@"m.in_reply_to" = .{ .event_id = answered orelse return null } };
}

fn htmlOf(document: markdown.Document) Failed![]const u8 {
    var out: std.ArrayList(u8) = .empty;
    var walk = document.walk();
    var in_pre: usize = 0;
    var after_block = false;
    while (try walk.next()) |piece| {
        switch (piece) {
            .open => |span| {
                if (span.kind == .pre) in_pre += 1;
                try open(&out, span);
            },
            .close => |span| {
                if (span.kind == .pre) in_pre -= 1;
                try close(&out, span);
                after_block = isBlock(span.kind);
                continue;
            },
            .words => |words| try escape(&out, if (after_block and std.mem.startsWith(u8, words, "\n")) words[1..] else words, in_pre == 0),
        }
        after_block = false;
    }
    return out.items;
}

fn isBlock(kind: markdown.Kind) bool {
    return kind == .quote or kind == .heading or kind == .pre;
}

fn open(out: *std.ArrayList(u8), span: markdown.Span) Failed!void {
    switch (span.kind) {
        .quote => try write(out, "<blockquote>", .{}),
        .heading => try write(out, "<h{d}>", .{span.value.len}),
        .link => {
            try write(out, "<a href=\"", .{});
            try escape(out, span.value, false);
            try write(out, "\">", .{});
        },
        .bold => try write(out, "<strong>", .{}),
        .italic => try write(out, "<em>", .{}),
        .strike => try write(out, "<del>", .{}),
        .code => try write(out, "<code>", .{}),
        .pre => if (span.value.len == 0) try write(out, "<pre><code>", .{}) else {
            try write(out, "<pre><code class=\"language-", .{});
            try escape(out, span.value, false);
            try write(out, "\">", .{});
        },
    }
}

fn close(out: *std.ArrayList(u8), span: markdown.Span) Failed!void {
    switch (span.kind) {
        .quote => try write(out, "</blockquote>", .{}),
        .heading => try write(out, "</h{d}>", .{span.value.len}),
        .link => try write(out, "</a>", .{}),
        .bold => try write(out, "</strong>", .{}),
        .italic => try write(out, "</em>", .{}),
        .strike => try write(out, "</del>", .{}),
        .code => try write(out, "</code>", .{}),
        .pre => try write(out, "</code></pre>", .{}),
    }
}

fn escape(out: *std.ArrayList(u8), text: []const u8, breaks: bool) Failed!void {
    for (text) |byte| try out.appendSlice(exogate.allocator, switch (byte) {
        '&' => "&amp;",
        '<' => "&lt;",
        '>' => "&gt;",
        '"' => "&quot;",
        '\n' => if (breaks) "<br>" else "\n",
        else => &.{byte},
    });
}

fn userId(given: Object) Failed![]const u8 {
    return idOf(objectOf(given.get("config")).get("user_id")) orelse exogate.refuse("Set config.user_id to the id of the application service's user, such as @exogate:example.org.", .{});
}

/// A part of a path: everything but letters, digits and `-._~` is percent-encoded.
fn encoded(text: []const u8) Failed![]const u8 {
    var out: std.ArrayList(u8) = .empty;
    for (text) |byte| {
        if (std.ascii.isAlphanumeric(byte) or std.mem.indexOfScalar(u8, "-._~", byte) != null) {
            try out.append(exogate.allocator, byte);
        } else try write(&out, "%{X:0>2}", .{byte});
    }
    return out.items;
}
