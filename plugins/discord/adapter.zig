//! Discord: its Gateway's messages and its interactions become messages; Markdown stays Markdown.
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

// Intents: GUILDS, GUILD_MESSAGES, DIRECT_MESSAGES and MESSAGE_CONTENT.
pub const describe =
    \\{"name": "discord", "version": "1.0.0", "kind": "channel", "channel": "discord",
    \\ "description": "Talks with people in Discord.",
    \\ "transports": [
    \\  {"type": "socket",
    \\   "url": "wss://gateway.discord.gg/?v=10&encoding=json", "resume_url": "resume_url",
    \\   "frames": [
    \\    {"when": {"op": 10}, "do": ["identify"], "keep": {"interval": "d.heartbeat_interval"}},
    \\    {"when": {"op": 11}, "do": ["alive"]},
    \\    {"when": {"op": 1}, "do": ["beat"]},
    \\    {"when": {"op": 7}, "do": ["reconnect"]},
    \\    {"when": {"op": 9, "d": true}, "do": ["reconnect"]},
    \\    {"when": {"op": 9}, "do": ["forget", "reconnect"]},
    \\    {"when": {"op": 0, "t": "READY"}, "do": ["event", "ready"],
    \\     "keep": {"seq": "s", "session": "d.session_id", "resume_url": "d.resume_gateway_url"}},
    \\    {"when": {"op": 0, "t": "RESUMED"}, "do": ["ready"], "keep": {"seq": "s"}},
    \\    {"when": {"op": 0, "t": "MESSAGE_CREATE"}, "do": ["event"], "keep": {"seq": "s"}},
    \\    {"when": {"op": 0}, "keep": {"seq": "s"}}],
    \\   "heartbeat": {"frame": {"op": 1, "d": "{kept.seq}"}, "kept_ms": "interval"},
    \\   "identify": {"op": 2, "d": {"token": "${secret:bot_token}", "intents": 37377,
    \\     "properties": {"os": "linux", "browser": "exogate", "device": "exogate"}}},
    \\   "resume": {"op": 6, "d": {"token": "${secret:bot_token}",
    \\     "session_id": "{kept.session}", "seq": "{kept.seq}"}},
    \\   "fatal_codes": [4004, 4010, 4011, 4012, 4013, 4014],
    \\   "reasons": {
    \\    "4004": "Discord does not know the bot token: set secrets.bot_token of this channel to the token that the Developer Portal shows under Bot",
    \\    "4010": "Discord refuses the shard that the adapter asked for: install a newer version of the plugin",
    \\    "4011": "the bot is in too many servers for one connection: make another bot for some of them, as a channel of its own",
    \\    "4012": "Discord no longer serves the API version of the adapter: install a newer version of the plugin",
    \\    "4013": "Discord does not know the intents that the adapter asked for: install a newer version of the plugin",
    \\    "4014": "Discord refuses an intent: switch Message Content Intent on in the Developer Portal, under Bot, Privileged Gateway Intents"},
    \\   "fresh_codes": [4003, 4007, 4009]},
    \\  {"type": "webhook"}],
    \\ "verify": {"type": "ed25519", "key": "public_key", "header": "x-signature-ed25519",
    \\            "timestamp_header": "x-signature-timestamp", "signs": "{timestamp}{body}"},
    \\ "outbound": {"secrets": ["bot_token"], "message_id": "id", "error": "message",
    \\              "retry_after": ["retry_after", "header:retry-after"], "idempotency": true,
    \\              "edits": true, "edit_every_s": 1.5, "edit_every_s_group": 3.0,
    \\              "typing_every_s": 8.0},
    \\ "limits": {"text": 2000, "unit": "utf16",
    \\            "rates": [{"scope": "peer", "count": 5, "per_s": 5.0},
    \\                      {"scope": "account", "count": 50, "per_s": 1.0}]},
    \\ "api_base": "https://discord.com/api/v10"}
;

comptime {
    exogate.serveChannel(@This());
}

// -------------------------------------------------------------------------------- what came in
const Sender = struct { id: []const u8, name: ?[]const u8, is_bot: bool, is_self: bool };

const File = struct { url: ?[]const u8, name: ?[]const u8, mime: ?[]const u8, size: ?i64 };

/// How an interaction is answered; comes back with each reply.
const Interaction = struct { id: []const u8, application: []const u8, token: []const u8 };

const Message = struct {
    peer: []const u8,
    kind: enum { direct, group },
    sender: Sender,
    text: []const u8,
    platform_id: []const u8,
    guild: ?[]const u8,
    thread: ?[]const u8 = null,
    timestamp: []const u8,
    reply_to: ?[]const u8 = null,
    mentions_me: bool,
    attachments: []const File = &.{},
    answer: ?Interaction = null,
};

pub fn parse(event: Object) Failed![]const u8 {
    const call = objectOf(try exogate.parse(textOf(event.get("body")) orelse ""));
    if (!is(event, "transport", "socket")) return interaction(call, objectOf(event.get("config")));
    const given = objectOf(call.get("d"));
    if (is(call, "t", "READY")) return exogate.stringify(.{ .state = textOf(objectOf(given.get("user")).get("id")) });
    if (!is(call, "t", "MESSAGE_CREATE")) return nothing;
    const message = try messageOf(given, textOf(event.get("state"))) orelse return nothing;
    return exogate.stringify(.{ .messages = .{message} });
}

const nothing = "{\"messages\": []}";

fn messageOf(given: Object, me: ?[]const u8) Failed!?Message {
    // Joins, pins and answers to commands are no messages to us; 0 is one, 19 replies to another.
    const kind = numberOf(given.get("type")) orelse 0;
    if (kind != 0 and kind != 19) return null;
    const author = objectOf(given.get("author"));
    const replied = objectOf(given.get("referenced_message"));
    const is_reply = kind == 19 and equal(textOf(objectOf(replied.get("author")).get("id")), me);
    const id = textOf(given.get("id")) orelse return null;
    const text = withoutName(textOf(given.get("content")) orelse "", me);
    const files = try filesOf(given);
    const mentioned = names(given, me);
    if (text.len == 0 and files.len == 0 and !mentioned) return null;
    const guild = textOf(given.get("guild_id"));
    const is_group = guild != null or numberOf(given.get("channel_type")) == 3;
    return .{
        .peer = textOf(given.get("channel_id")) orelse return null,
        .kind = if (is_group) .group else .direct,
        .sender = .{
            .id = textOf(author.get("id")) orelse return null,
            .name = textOf(author.get("global_name")) orelse textOf(author.get("username")),
            .is_bot = truth(author.get("bot")) or textOf(given.get("webhook_id")) != null,
            .is_self = equal(textOf(author.get("id")), me),
        },
        .text = text,
        .platform_id = id,
        .guild = guild,
        .timestamp = try madeAt(id),
        .reply_to = if (kind == 19) textOf(objectOf(given.get("message_reference")).get("message_id")) else null,
        .mentions_me = mentioned or is_reply,
        .attachments = files,
    };
}

/// A request of Discord's own to our address: a command that somebody gave, or a question whether
/// we are there.
fn interaction(call: Object, config: Object) Failed![]const u8 {
    // Of the webhook events, which are numbered otherwise, none is a message.
    const is_event = call.get("event") != null or numberOf(call.get("type")) == 0;
    if (is_event) return exogate.stringify(.{ .reply = .{ .status = 204 } });
    return switch (numberOf(call.get("type")) orelse 0) {
        1 => now("{\"type\":1}"),
        2 => command(call, config),
        3 => now("{\"type\":6}"),
        4 => now("{\"type\":8,\"data\":{\"choices\":[]}}"),
        else => now(unserved),
    };
}

const unserved = "{\"type\":4,\"data\":{\"content\":\"This is not served here: give a command with text.\",\"flags\":64}}";
const later = "{\"type\":5}";

const Reply = struct {
    status: u16 = 200,
    headers: struct { @"content-type": []const u8 = "application/json" } = .{},
    body: []const u8,
    promises: ?bool = null,
};

fn now(body: []const u8) Failed![]const u8 {
    return exogate.stringify(.{ .reply = Reply{ .body = body } });
}

fn command(call: Object, config: Object) Failed![]const u8 {
    const data = objectOf(call.get("data"));
    const id = textOf(call.get("id")) orelse return exogate.refuse("The interaction has no id.", .{});
    const text = try commandText(data, textOf(config.get("command")) orelse "ask") orelse return now(unserved);
    const member = objectOf(objectOf(call.get("member")).get("user"));
    const user = if (member.count() > 0) member else objectOf(call.get("user"));
    const channel = objectOf(call.get("channel"));
    const room = textOf(call.get("channel_id")) orelse return exogate.refuse("The interaction has no channel.", .{});
    const guild = textOf(call.get("guild_id"));
    const parent = if (isThread(channel)) textOf(channel.get("parent_id")) else null;
    // Two persons' private chat in which this app is used is a room, not a chat with us.
    const context = numberOf(call.get("context"));
    const is_direct = guild == null and (context == null or context == 1);
    return exogate.stringify(.{ .reply = Reply{ .body = later, .promises = true }, .messages = .{Message{
        .peer = parent orelse room,
        .kind = if (is_direct) .direct else .group,
        .sender = .{
            .id = textOf(user.get("id")) orelse return exogate.refuse("Nobody gave the command.", .{}),
            .name = textOf(user.get("global_name")) orelse textOf(user.get("username")),
            .is_bot = truth(user.get("bot")),
            .is_self = false,
        },
        .text = text,
        .platform_id = id,
        .guild = guild,
        .thread = if (parent != null) room else null,
        .timestamp = try madeAt(id),
        .mentions_me = true,
        .answer = .{
            .id = id,
            .application = textOf(call.get("application_id")) orelse return exogate.refuse("The interaction has no application.", .{}),
            .token = textOf(call.get("token")) orelse return exogate.refuse("The interaction has no token.", .{}),
        },
    }} });
}

/// `/ask text` is the text; any other command is handed on as it was given. A command on a message
/// is that message.
fn commandText(data: Object, ask: []const u8) Failed!?[]const u8 {
    const name = textOf(data.get("name")) orelse return null;
    var out: std.ArrayList(u8) = .empty;
    if (numberOf(data.get("type")) == 3) {
        const chosen = textOf(data.get("target_id")) orelse return null;
        const messages = objectOf(objectOf(data.get("resolved")).get("messages"));
        const content = std.mem.trim(u8, textOf(objectOf(messages.get(chosen)).get("content")) orelse "", " \t\r\n");
        // Somebody else wrote it: it is no command of whoever chose it.
        if (std.mem.startsWith(u8, content, "/")) try write(&out, "{s}: ", .{name});
        try out.appendSlice(exogate.allocator, content);
    } else {
        if (!std.mem.eql(u8, name, ask)) try write(&out, "/{s}", .{name});
        try filledIn(&out, itemsOf(data.get("options")), 0);
    }
    const text = std.mem.trim(u8, out.items, " \n");
    return if (text.len > 0) text else null;
}

/// What was filled in, of commands within commands too.
fn filledIn(out: *std.ArrayList(u8), options: []const exogate.Value, depth: u8) Failed!void {
    for (options) |one| {
        const option = objectOf(one);
        const within = itemsOf(option.get("options"));
        if (numberOf(option.get("type")) orelse 3 < 3) {
            try write(out, " {s}", .{textOf(option.get("name")) orelse ""});
            if (depth < 3) try filledIn(out, within, depth + 1);
        } else switch (option.get("value") orelse .null) {
            .string => |text| try write(out, " {s}", .{text}),
            .integer => |whole| try write(out, " {d}", .{whole}),
            .float => |float| try write(out, " {d}", .{float}),
            .bool => |truthful| try write(out, " {}", .{truthful}),
            else => {},
        }
    }
}

fn isThread(channel: Object) bool {
    const kind = numberOf(channel.get("type")) orelse return false;
    return kind >= 10 and kind <= 12;
}

fn names(given: Object, me: ?[]const u8) bool {
    for (itemsOf(given.get("mentions"))) |one| {
        if (equal(textOf(objectOf(one).get("id")), me)) return true;
    }
    return false;
}

/// Without the mention of the bot that a message begins with.
fn withoutName(content: []const u8, me: ?[]const u8) []const u8 {
    const text = std.mem.trim(u8, content, " \n");
    const name = me orelse return text;
    for ([_][]const u8{ "<@", "<@!" }) |mark| {
        if (!std.mem.startsWith(u8, text, mark)) continue;
        const rest = text[mark.len..];
        if (std.mem.startsWith(u8, rest, name) and std.mem.startsWith(u8, rest[name.len..], ">"))
            return std.mem.trim(u8, rest[name.len + 1 ..], " \n");
    }
    return text;
}

fn filesOf(given: Object) Failed![]const File {
    var files: std.ArrayList(File) = .empty;
    for (itemsOf(given.get("attachments"))) |one| {
        const file = objectOf(one);
        try files.append(exogate.allocator, .{
            .url = textOf(file.get("url")),
            .name = textOf(file.get("filename")),
            .mime = textOf(file.get("content_type")),
            .size = numberOf(file.get("size")),
        });
    }
    for (itemsOf(given.get("sticker_items"))) |one| try files.append(exogate.allocator, .{
        .url = null,
        .name = try exogate.print("sticker {s}", .{textOf(objectOf(one).get("name")) orelse ""}),
        .mime = null,
        .size = null,
    });
    return files.items;
}

/// Seconds since 1970, which every id tells.
fn madeAt(id: []const u8) Failed![]const u8 {
    const number = std.fmt.parseInt(u64, id, 10) catch return exogate.refuse("An id is no number.", .{});
    return exogate.print("{d}", .{madeMs(number) / 1000});
}

fn madeMs(id: u64) u64 {
    return (id >> 22) + 1_420_070_400_000;
}


// ------------------------------------------------------------------------------- what goes out
/// An interaction can be answered for 15 minutes; after that a message goes to its channel.
const answerable_ms = 14 * 60 * 1000;

pub fn format(reply: Object) Failed![]const u8 {
    const do = textOf(reply.get("do")) orelse "send";
    const base = textOf(reply.get("api_base")) orelse "";
    const way = try wayOf(reply);
    if (std.mem.eql(u8, do, "typing")) {
        if (way.interaction != null) return "{\"requests\": []}"; // Discord says so itself
        return exogate.stringify(.{ .requests = .{Request{
            .method = "POST",
            .url = try exogate.print("{s}/channels/{s}/typing", .{ base, way.channel }),
            .headers = .{ .authorization = by_bot },
        }} });
    }
    const key = textOf(reply.get("key")) orelse "";
    const edits = if (std.mem.eql(u8, do, "edit"))
        textOf(reply.get("edits")) orelse return exogate.refuse("It is not said which message to edit.", .{})
    else
        null;
    const text = try dialect(textOf(reply.get("text")) orelse "");
    if (markdown.units(text) > most_units) return "{\"too_long\": true}";
    const request = if (way.interaction) |given|
        try answered(base, given, edits, text, key, textOf(reply.get("reply_to")) != null)
    else
        try sent(base, way.channel, edits, text, key, replyTo(reply));
    return exogate.stringify(.{ .requests = .{request}, .edit = edits == null });
}

const most_units = 2000;
const by_bot = "Bot ${secret:bot_token}";
const nobody = .{ .parse = [0][]const u8{} };
const without_previews = 4;

const Headers = struct { authorization: ?[]const u8 = null, @"content-type": []const u8 = "application/json" };
const Key = struct { key: []const u8 };

const Request = struct {
    method: []const u8,
    url: []const u8,
    headers: Headers,
    body: []const u8 = "",
    idempotency: ?Key = null,
};

/// A message of the bot's to a channel. Discord makes one of those with the same nonce.
fn sent(base: []const u8, channel: []const u8, edits: ?[]const u8, text: []const u8, key: []const u8, to: ?[]const u8) Failed!Request {
    return .{
        .method = if (edits == null) "POST" else "PATCH",
        .url = if (edits) |id|
            try exogate.print("{s}/channels/{s}/messages/{s}", .{ base, channel, id })
        else
            try exogate.print("{s}/channels/{s}/messages", .{ base, channel }),
        .headers = .{ .authorization = by_bot },
        .body = if (edits == null) try exogate.stringify(.{
            .content = text,
            .nonce = key,
            .enforce_nonce = true,
            .allowed_mentions = nobody,
            .flags = without_previews,
            .message_reference = if (to) |id| Reference{ .message_id = id } else null,
        }) else try edited(text),
        .idempotency = .{ .key = key },
    };
}

const Reference = struct { message_id: []const u8, fail_if_not_exists: bool = false };

fn edited(text: []const u8) Failed![]const u8 {
    return exogate.stringify(.{ .content = text, .allowed_mentions = nobody, .flags = without_previews });
}

/// The answer to an interaction: its first part, which alone names what it answers, takes the place of
/// "is thinking", which can be done twice; of what follows Discord knows no key.
fn answered(base: []const u8, given: Interaction, edits: ?[]const u8, text: []const u8, key: []const u8, is_first: bool) Failed!Request {
    const id = edits orelse @as(?[]const u8, if (is_first) "@original" else null);
    const where = try exogate.print("{s}/webhooks/{s}/{s}", .{ base, given.application, given.token });
    return .{
        .method = if (id == null) "POST" else "PATCH",
        .url = if (id) |one| try exogate.print("{s}/messages/{s}", .{ where, one }) else where,
        .headers = .{},
        .body = try edited(text),
        .idempotency = if (id == null) null else .{ .key = key },
    };
}

const Way = struct { channel: []const u8, interaction: ?Interaction };

fn wayOf(reply: Object) Failed!Way {
    const peer = textOf(reply.get("peer")) orelse return exogate.refuse("It is not said to whom.", .{});
    const answer = objectOf(reply.get("answer"));
    return .{
        .channel = textOf(reply.get("thread")) orelse peer,
        .interaction = if (textOf(answer.get("id"))) |id| try fresh(.{
            .id = id,
            .application = textOf(answer.get("application")) orelse "",
            .token = textOf(answer.get("token")) orelse "",
        }) else null,
    };
}

fn fresh(given: Interaction) Failed!?Interaction {
    const number = std.fmt.parseInt(u64, given.id, 10) catch return null;
    return if (exogate.clock.now_ms() < madeMs(number) + answerable_ms) given else null;
}

/// In a room the answer shows what it answers; of an interaction there is no message.
fn replyTo(reply: Object) ?[]const u8 {
    if (!truth(reply.get("is_group"))) return null;
    if (objectOf(reply.get("answer")).get("token") != null) return null;
    return textOf(reply.get("reply_to"));
}

/// Discord's Markdown: without tables, images and small headings, and `_` twice is a line below.
fn dialect(text: []const u8) Failed![]const u8 {
    const document = try markdown.read(text);
    var writer = Writer{};
    var walk = document.walk();
    while (try walk.next()) |piece| switch (piece) {
        .open => |span| try writer.open(span, document.text[span.start..span.end]),
        .close => |span| try writer.close(span, document.text[span.start..span.end]),
        .words => |words| try writer.words(words),
    };
    return writer.out.items;
}

const Writer = struct {
    out: std.ArrayList(u8) = .empty,
    is_quoted: bool = false,
    is_code: bool = false,

    fn add(self: *Writer, text: []const u8) Failed!void {
        try self.out.appendSlice(exogate.allocator, text);
    }

    fn open(self: *Writer, span: markdown.Span, text: []const u8) Failed!void {
        switch (span.kind) {
            .quote => {
                self.is_quoted = true;
                try self.add("> ");
            },
            .heading => if (isLarge(span)) try write(&self.out, "{s} ", .{span.value}) else try self.add("**"),
            .bold => try self.add("**"),
            .italic => try self.add("*"),
            .strike => try self.add("~~"),
            .link => if (!std.mem.eql(u8, text, span.value)) try self.add("["),
            .code => {
                self.is_code = true;
                try self.add(if (hasTick(text)) "`` " else "`");
            },
            .pre => {
                self.is_code = true;
                try write(&self.out, "```{s}", .{span.value});
                try self.newline();
            },
        }
    }

    fn close(self: *Writer, span: markdown.Span, text: []const u8) Failed!void {
        switch (span.kind) {
            .quote => self.is_quoted = false,
            .heading => if (!isLarge(span)) try self.add("**"),
            .bold => try self.add("**"),
            .italic => try self.add("*"),
            .strike => try self.add("~~"),
            .link => if (!std.mem.eql(u8, text, span.value)) {
                const is_bare = std.mem.indexOfAny(u8, span.value, "()") == null;
                try write(&self.out, "{s}{s}{s}", .{ if (is_bare) "](" else "](<", span.value, if (is_bare) ")" else ">)" });
            },
            .code => {
                self.is_code = false;
                try self.add(if (hasTick(text)) " ``" else "`");
            },
            .pre => {
                try self.newline();
                try self.add("```");
                self.is_code = false;
            },
        }
    }

    fn newline(self: *Writer) Failed!void {
        try self.add(if (self.is_quoted) "\n> " else "\n");
    }

    fn words(self: *Writer, text: []const u8) Failed!void {
        var at: usize = 0;
        var address_to: usize = 0;
        while (at < text.len) {
            const rest = text[at..];
            if (isAddress(rest)) address_to = at + (std.mem.indexOfAny(u8, rest, " \n") orelse rest.len);
            const fence = self.is_code and std.mem.startsWith(u8, rest, "```");
            if (rest[0] == '\n') {
                try self.newline();
            } else if (fence) {
                try self.add("``\u{200b}`");
            } else {
                const is_text = !self.is_code and at >= address_to;
                if (is_text and isMark(self.out.getLastOrNull(), rest)) try self.add("\\");
                try self.out.append(exogate.allocator, rest[0]);
            }
            at += if (fence) 3 else 1;
        }
    }
};

fn isLarge(span: markdown.Span) bool {
    return span.value.len <= 3;
}

fn hasTick(text: []const u8) bool {
    return std.mem.indexOfScalar(u8, text, '`') != null;
}

fn isAddress(text: []const u8) bool {
    return std.mem.startsWith(u8, text, "https://") or std.mem.startsWith(u8, text, "http://");
}

fn isWord(byte: ?u8) bool {
    const given = byte orelse return false;
    return std.ascii.isAlphanumeric(given) or given >= 0x80;
}

/// Whether Discord would take this character, which is meant as itself, for a mark.
fn isMark(before: ?u8, text: []const u8) bool {
    const after = text[@min(1, text.len - 1)]; // a mark may follow the end
    const is_first = before == null or before == '\n';
    return switch (text[0]) {
        '`' => true,
        '*' => after != ' ' and after != '\n' or before != null and before != ' ' and before != '\n',
        '_' => !isWord(before) or !isWord(after),
        '~', '|' => after == text[0],
        '\\' => !isWord(after) and after > ' ',
        '#', '>' => is_first and (after == ' ' or after == '#'),
        '-' => is_first and after == '#',
        else => false,
    };
}
