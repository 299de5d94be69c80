//! Slack: what its Events API and Socket Mode bring becomes messages; Markdown becomes mrkdwn.
const std = @import("std");
const exogate = @import("exogate");
const markdown = @import("markdown");
const values = @import("values");

const Object = exogate.Object;
const Failed = exogate.Failed;
const objectOf = exogate.objectOf;
const textOf = exogate.textOf;
const equal = values.equal;
const is = values.is;
const itemsOf = values.itemsOf;
const numberOf = values.numberOf;
const truth = values.truth;
const write = values.write;

pub const describe =
    \\{"name": "slack", "version": "1.0.0", "kind": "channel", "channel": "slack",
    \\ "description": "Talks with people in Slack.",
    \\ "transports": [
    \\  {"type": "webhook"},
    \\  {"type": "socket",
    \\   "open": {"method": "POST", "url": "{api_base}/apps.connections.open",
    \\            "headers": {"authorization": "Bearer ${secret:app_token}",
    \\                        "content-type": "application/x-www-form-urlencoded"}},
    \\   "url_at": "url",
    \\   "frames": [{"when": {"type": "hello"}, "do": ["ready"]},
    \\              {"when": {"type": "disconnect"}, "do": ["renew"]},
    \\              {"when": {"type": "events_api"}, "do": ["event"]},
    \\              {"when": {"type": "slash_commands"}, "do": ["event"]},
    \\              {"when": {"type": "interactive"}, "do": ["event"]}],
    \\   "acknowledge": {"envelope_id": "{frame.envelope_id}"}}],
    \\ "verify": {"type": "hmac_sha256", "secret": "signing_secret",
    \\            "header": "x-slack-signature", "prefix": "v0=",
    \\            "timestamp_header": "x-slack-request-timestamp",
    \\            "signs": "v0:{timestamp}:{body}"},
    \\ "outbound": {"secrets": ["bot_token"], "message_id": "ts", "ok": "ok", "error": "error",
    \\              "retry_errors": ["ratelimited", "rate_limited", "service_unavailable",
    \\                               "request_timeout", "team_added_to_org", "internal_error",
    \\                               "fatal_error"],
    \\              "edits": true, "edit_every_s": 2.0, "edit_every_s_group": 3.0},
    \\ "limits": {"text": 3500, "unit": "characters",
    \\            "rates": [{"scope": "peer", "count": 1, "per_s": 1.0}]},
    \\ "secrets": ["bot_token"],
    \\ "api_base": "https://slack.com/api"}
;

comptime {
    exogate.serveChannel(@This());
}

// -------------------------------------------------------------------------------- what came in
const Sender = struct { id: []const u8, is_bot: bool, is_self: bool };

const File = struct { url: ?[]const u8, name: ?[]const u8, mime: ?[]const u8, size: ?i64 };

const Message = struct {
    peer: []const u8,
    kind: enum { direct, group },
    sender: Sender,
    text: []const u8,
    platform_id: []const u8,
    team: ?[]const u8,
    thread: ?[]const u8,
    timestamp: ?[]const u8,
    mentions_me: bool,
    attachments: []const File,
};

pub fn parse(event: Object) Failed![]const u8 {
    const given = textOf(event.get("body")) orelse "";
    // Buttons and commands come as forms, not as messages.
    const kind = textOf(objectOf(event.get("headers")).get("content-type")) orelse "";
    if (std.mem.startsWith(u8, kind, "application/x-www-form-urlencoded")) return nothing;
    const frame = objectOf(try exogate.parse(given));
    const call = if (frame.get("envelope_id") == null) frame else objectOf(frame.get("payload"));
    if (is(call, "type", "url_verification")) return exogate.stringify(.{ .reply = .{
        .headers = .{ .@"content-type" = "text/plain" },
        .body = textOf(call.get("challenge")) orelse return exogate.refuse("The challenge is missing.", .{}),
    } });
    if (is(call, "type", "app_rate_limited")) exogate.log(.warn, "Slack holds events back: there were too many in an hour.");
    if (!is(call, "type", "event_callback")) return nothing;
    const message = try messageOf(call, objectOf(call.get("event"))) orelse return nothing;
    return exogate.stringify(.{ .messages = .{message} });
}

const nothing = "{\"messages\": []}";
/// A message without a subtype is one of a person; of the others these alone are new messages.
const said = [_][]const u8{ "file_share", "thread_broadcast", "me_message", "bot_message" };

fn messageOf(call: Object, event: Object) Failed!?Message {
    const is_mention = is(event, "type", "app_mention");
    if (!is_mention and !is(event, "type", "message")) return null;
    if (textOf(event.get("subtype"))) |subtype| {
        for (said) |one| {
            if (std.mem.eql(u8, one, subtype)) break;
        } else return null;
    }
    const channel = textOf(event.get("channel")) orelse return null;
    if (channel.len == 0) return null;
    const at = textOf(event.get("ts")) orelse return null;
    const me = botOf(call);
    const person = textOf(event.get("user"));
    const bot = textOf(event.get("bot_id"));
    const raw = textOf(event.get("text")) orelse "";
    const files = try filesOf(event);
    const text = try plain(raw, me);
    if (text.len == 0 and files.len == 0 and !is_mention) return null;
    return .{
        .peer = channel,
        .kind = if (is(event, "channel_type", "im") or channel[0] == 'D') .direct else .group,
        .sender = .{
            .id = person orelse bot orelse return null,
            .is_bot = bot != null or is(event, "subtype", "bot_message"),
            .is_self = equal(person, me),
        },
        .text = text,
        // One message comes as two events, of which each has an id of its own.
        .platform_id = try exogate.print("{s}:{s}", .{ channel, at }),
        .team = textOf(call.get("team_id")),
        .thread = textOf(event.get("thread_ts")),
        .timestamp = at[0 .. std.mem.indexOfScalar(u8, at, '.') orelse at.len],
        .mentions_me = is_mention or try mentions(raw, me) or equal(textOf(event.get("parent_user_id")), me),
        .attachments = files,
    };
}

/// The user that this app is in the workspace.
fn botOf(call: Object) ?[]const u8 {
    for (itemsOf(call.get("authorizations"))) |one| {
        const given = objectOf(one);
        if (truth(given.get("is_bot"))) return textOf(given.get("user_id"));
    }
    return null;
}

fn mentions(raw: []const u8, me: ?[]const u8) Failed!bool {
    for ([_][]const u8{ ">", "|" }) |end| {
        const mark = try exogate.print("<@{s}{s}", .{ me orelse return false, end });
        if (std.mem.indexOf(u8, raw, mark) != null) return true;
    }
    return false;
}

fn filesOf(event: Object) Failed![]const File {
    var files: std.ArrayList(File) = .empty;
    for (itemsOf(event.get("files"))) |one| {
        const file = objectOf(one);
        try files.append(exogate.allocator, .{
            .url = textOf(file.get("url_private")),
            .name = textOf(file.get("name")),
            .mime = textOf(file.get("mimetype")),
            .size = numberOf(file.get("size")),
        });
    }
    return files.items;
}

/// What a person reads: without entities, without marks, without the bot's name in front.
fn plain(raw: []const u8, me: ?[]const u8) Failed![]const u8 {
    var out: std.ArrayList(u8) = .empty;
    var rest = raw;
    while (std.mem.indexOfAny(u8, rest, "<&")) |at| {
        try out.appendSlice(exogate.allocator, rest[0..at]);
        rest = rest[at..];
        const is_mark = rest[0] == '<' and rest.len > 1 and std.mem.indexOfScalar(u8, " <>", rest[1]) == null;
        const end = if (is_mark) std.mem.indexOfScalar(u8, rest, '>') else null;
        if (end) |close| {
            const is_first = std.mem.trim(u8, out.items, " \n").len == 0;
            try readMark(&out, rest[1..close], if (is_first) me else null);
            rest = rest[close + 1 ..];
        } else rest = try readEntity(&out, rest);
    }
    try out.appendSlice(exogate.allocator, rest);
    return std.mem.trim(u8, out.items, " \n");
}

const entities = .{ .{ "&lt;", "<" }, .{ "&gt;", ">" }, .{ "&amp;", "&" } };

/// Takes the entity or the one character that `text` begins with; returns what is behind it.
fn readEntity(out: *std.ArrayList(u8), text: []const u8) Failed![]const u8 {
    inline for (entities) |entity| {
        if (std.mem.startsWith(u8, text, entity[0])) {
            try out.appendSlice(exogate.allocator, entity[1]);
            return text[entity[0].len..];
        }
    }
    try out.append(exogate.allocator, text[0]);
    return text[1..];
}

/// What stood between < and >: a person, a room, a group, a date or a link.
fn readMark(out: *std.ArrayList(u8), mark: []const u8, dropped: ?[]const u8) Failed!void {
    const bar = std.mem.indexOfScalar(u8, mark, '|');
    const target = mark[0 .. bar orelse mark.len];
    const label = if (bar) |at| mark[at + 1 ..] else "";
    switch (mark[0]) {
        '@' => if (!equal(target[1..], dropped)) try write(out, "<{s}>", .{target}),
        '#' => if (label.len > 0) try write(out, "#{s}", .{label}) else try write(out, "<{s}>", .{target}),
        '!' => if (label.len > 0) try unescape(out, label) else try write(out, "@{s}", .{target[1..]}),
        else => {
            const is_same = label.len == 0 or std.mem.endsWith(u8, target, label);
            if (!is_same) {
                try out.append(exogate.allocator, '[');
                try unescape(out, label);
                try out.appendSlice(exogate.allocator, "](");
            }
            try unescape(out, if (is_same and std.mem.startsWith(u8, target, "mailto:")) target["mailto:".len..] else target);
            if (!is_same) try out.append(exogate.allocator, ')');
        },
    }
}

fn unescape(out: *std.ArrayList(u8), text: []const u8) Failed!void {
    var rest = text;
    while (rest.len > 0) rest = try readEntity(out, rest);
}


// ------------------------------------------------------------------------------- what goes out
/// Slack refuses an edit of more, and asks for no more in a message.
const most_characters = 4000;

pub fn format(reply: Object) Failed![]const u8 {
    const do = textOf(reply.get("do")) orelse "send";
    if (std.mem.eql(u8, do, "typing")) return "{\"requests\": []}"; // a bot cannot say so
    const text = try mrkdwn(textOf(reply.get("text")) orelse "");
    const length = std.unicode.utf8CountCodepoints(text) catch text.len;
    if (length > most_characters) return "{\"too_long\": true}";
    const is_edit = std.mem.eql(u8, do, "edit");
    const edits = textOf(reply.get("edits"));
    if (is_edit and edits == null) return exogate.refuse("It is not said which message to edit.", .{});
    return exogate.stringify(.{
        .requests = .{.{
            .method = "POST",
            .url = try exogate.print("{s}/chat.{s}", .{
                textOf(reply.get("api_base")) orelse "",
                if (is_edit) "update" else "postMessage",
            }),
            .headers = .{
                .authorization = "Bearer ${secret:bot_token}",
                .@"content-type" = "application/json; charset=utf-8",
            },
            .body = try exogate.stringify(.{
                .channel = textOf(reply.get("peer")) orelse return exogate.refuse("It is not said to whom.", .{}),
                .ts = if (is_edit) edits else null,
                .thread_ts = if (is_edit) null else textOf(reply.get("thread")),
                .text = text,
                .parse = "none", // an edit would read it in another way than a message
                .unfurl_links = false,
                .unfurl_media = false,
            }),
            .idempotency = if (is_edit) Key{ .key = textOf(reply.get("key")) orelse "" } else null,
        }},
        .edit = !is_edit,
    });
}

/// The same edit twice is one edit; the same message twice is two.
const Key = struct { key: []const u8 };

fn mrkdwn(text: []const u8) Failed![]const u8 {
    const document = try markdown.read(text);
    linksInside(@constCast(document.spans));
    var writer = Writer{};
    var walk = document.walk();
    while (try walk.next()) |piece| switch (piece) {
        .open => |span| try writer.open(span, document.text[span.start..span.end]),
        .close => |span| try writer.close(span, document.text[span.start..span.end]),
        .words => |words| try writer.words(words),
    };
    return writer.out.items;
}

/// A link holds nothing but its label: what it is in as a whole goes around it.
fn linksInside(spans: []markdown.Span) void {
    for (1..@max(spans.len, 1)) |at| {
        const link, const next = .{ spans[at - 1], spans[at] };
        if (link.kind != .link or next.start != link.start or next.end != link.end) continue;
        spans[at - 1] = next;
        spans[at] = link;
    }
}

/// Slack sees a mark only beside something that is no letter: this one is not seen.
const gap = "\u{200b}";

const Writer = struct {
    out: std.ArrayList(u8) = .empty,
    marks: std.ArrayList(u8) = .empty, // those that are open; 0 is one that nobody sees
    is_quoted: bool = false,
    is_code: bool = false,
    is_link: bool = false,
    has_closed: bool = false, // a mark, just now

    fn add(self: *Writer, text: []const u8) Failed!void {
        try self.out.appendSlice(exogate.allocator, text);
    }

    fn open(self: *Writer, span: markdown.Span, text: []const u8) Failed!void {
        switch (span.kind) {
            .quote => {
                self.is_quoted = true;
                try self.add("> ");
            },
            .pre => {
                self.is_code = true;
                try self.add("```");
                try self.newline();
            },
            .link => {
                self.is_link = true;
                try self.add("<");
                try self.address(span.value);
                try self.add("|");
            },
            .code => if (isCode(text)) {
                self.is_code = true;
                try self.beside();
                if (!self.is_link) try self.add("`");
            },
            .heading, .bold, .italic, .strike => {
                const one = markOf(span.kind);
                // Not in a label, and not twice: a heading is bold already.
                const is_seen = !self.is_link and std.mem.indexOfScalar(u8, self.marks.items, one) == null;
                if (is_seen) try self.beside();
                try self.marks.append(exogate.allocator, if (is_seen) one else 0);
                if (is_seen) try self.mark(one);
            },
        }
    }

    fn close(self: *Writer, span: markdown.Span, text: []const u8) Failed!void {
        switch (span.kind) {
            .quote => self.is_quoted = false,
            .pre => {
                try self.newline();
                try self.add("```");
                self.is_code = false;
            },
            .link => {
                try self.add(">");
                self.is_link = false;
            },
            .code => if (isCode(text)) {
                if (!self.is_link) try self.add("`");
                self.is_code = false;
                self.has_closed = true;
            },
            .heading, .bold, .italic, .strike => {
                const one = self.marks.pop().?;
                try self.mark(one);
                self.has_closed = one != 0;
            },
        }
    }

    fn beside(self: *Writer) Failed!void {
        if (isWord(self.out.getLastOrNull())) try self.add(gap);
    }

    fn words(self: *Writer, text: []const u8) Failed!void {
        if (self.has_closed and isWord(text[0])) try self.add(gap);
        self.has_closed = false;
        var at: usize = 0;
        var address_to: usize = 0;
        while (at < text.len) {
            const rest = text[at..];
            if (isAddress(rest)) address_to = at + (std.mem.indexOfAny(u8, rest, " \n") orelse rest.len);
            const is_plain = !self.is_code and !self.is_link;
            const fence = self.is_code and std.mem.startsWith(u8, rest, "```");
            const person = if (is_plain) personLen(rest) else 0;
            at += if (person > 0) person else if (fence) 3 else 1;
            if (person > 0) {
                try self.add(rest[0..person]);
            } else if (fence) {
                try self.add("``" ++ gap ++ "`");
            } else if (rest[0] == '\n') {
                try self.lineEnd();
            } else {
                const is_seen = is_plain and at > address_to and beginsMark(self.out.getLastOrNull(), rest);
                try self.escaped(rest[0]);
                if (is_seen) try self.add(gap);
            }
        }
    }

    fn escaped(self: *Writer, byte: u8) Failed!void {
        switch (byte) {
            '&' => try self.add("&amp;"),
            '<' => try self.add("&lt;"),
            '>' => try self.add("&gt;"),
            else => try self.out.append(exogate.allocator, byte),
        }
    }

    /// In a link, where these have a meaning of their own.
    fn address(self: *Writer, url: []const u8) Failed!void {
        for (url) |byte| switch (byte) {
            '|' => try self.add("%7C"),
            '<' => try self.add("%3C"),
            '>' => try self.add("%3E"),
            else => try self.escaped(byte),
        };
    }

    fn newline(self: *Writer) Failed!void {
        try self.add(if (self.is_quoted) "\n> " else "\n");
    }

    /// Marks do not reach over lines.
    fn lineEnd(self: *Writer) Failed!void {
        if (self.is_link) return self.add(" ");
        const marks = self.marks.items;
        if (marks.len > 0) self.out.items.len = std.mem.trimEnd(u8, self.out.items, " ").len;
        for (0..marks.len) |count| try self.mark(marks[marks.len - 1 - count]);
        try self.newline();
        for (marks) |one| try self.mark(one);
    }

    fn mark(self: *Writer, one: u8) Failed!void {
        if (one != 0) try self.out.append(exogate.allocator, one);
    }
};

fn markOf(kind: markdown.Kind) u8 {
    return switch (kind) {
        .italic => '_',
        .strike => '~',
        else => '*',
    };
}

/// There is no way to write a backtick in code.
fn isCode(text: []const u8) bool {
    return std.mem.indexOfScalar(u8, text, '`') == null;
}

fn isWord(byte: ?u8) bool {
    const given = byte orelse return false;
    return std.ascii.isAlphanumeric(given) or given >= 0x80;
}

fn isAddress(text: []const u8) bool {
    return std.mem.startsWith(u8, text, "https://") or std.mem.startsWith(u8, text, "http://");
}

/// `<@U123>` and `<#C123>`: the others of the kind, which call a whole room, are text.
fn personLen(text: []const u8) usize {
    if (text.len < 4 or text[0] != '<') return 0;
    const end = std.mem.indexOfScalar(u8, text[0..@min(text.len, 32)], '>') orelse return 0;
    const is_known = switch (text[1]) {
        '@' => text[2] == 'U' or text[2] == 'W',
        '#' => text[2] == 'C',
        else => false,
    };
    if (!is_known) return 0;
    for (text[2..end]) |byte| if (!std.ascii.isUpper(byte) and !std.ascii.isDigit(byte)) return 0;
    return end + 1;
}

/// Whether Slack would take this character, which is meant as itself, for a mark.
fn beginsMark(before: ?u8, text: []const u8) bool {
    if (std.mem.indexOfScalar(u8, "*_~`", text[0]) == null or isWord(before)) return false;
    const line = text[0 .. std.mem.indexOfScalar(u8, text, '\n') orelse text.len];
    if (line.len < 3 or line[1] == ' ') return false;
    for (2..line.len) |at| {
        const is_end = line[at] == line[0] and line[at - 1] != ' ';
        if (is_end and (at + 1 == line.len or !isWord(line[at + 1]))) return true;
    }
    return false;
}
