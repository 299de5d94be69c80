//! Telegram: updates of the Bot API, called or polled, become messages; Markdown becomes plain text with
//! entities, so that no mark in an answer can break it.
const std = @import("std");
const exogate = @import("exogate");
const markdown = @import("markdown");
const values = @import("values");

const Object = exogate.Object;
const Value = exogate.Value;
const Failed = exogate.Failed;
const objectOf = exogate.objectOf;
const textOf = exogate.textOf;

pub const describe =
    \\{"name": "telegram", "version": "1.0.0", "kind": "channel", "channel": "telegram",
    \\ "description": "Talks with people in Telegram, as a bot.",
    \\ "transports": [
    \\  {"type": "poll", "interval_s": 0, "timeout_s": 65,
    \\   "request": {"url": "{api_base}/bot${secret:bot_token}/getUpdates?timeout=50&allowed_updates=%5B%22message%22%5D&offset={state}"},
    \\   "setup": {"method": "POST", "url": "{api_base}/bot${secret:bot_token}/deleteWebhook"}},
    \\  {"type": "webhook",
    \\   "setup": {"method": "POST", "url": "{api_base}/bot${secret:bot_token}/setWebhook?url={webhook_url}&secret_token=${secret:webhook_secret}&allowed_updates=%5B%22message%22%5D"}}],
    \\ "verify": {"type": "token", "secret": "webhook_secret", "header": "x-telegram-bot-api-secret-token"},
    \\ "outbound": {"secrets": ["bot_token"], "message_id": "result.message_id", "ok": "ok", "error": "description",
    \\  "retry_after": ["parameters.retry_after", "header:retry-after"], "moved_to": "parameters.migrate_to_chat_id",
    \\  "done_errors": ["Bad Request: message is not modified"],
    \\  "edits": true, "edit_every_s": 1.5, "edit_every_s_group": 4.0, "typing_every_s": 4.5},
    \\ "limits": {"text": 4096, "unit": "utf16", "rates": [
    \\  {"scope": "peer", "count": 1, "per_s": 1.0}, {"scope": "group", "count": 20, "per_s": 60.0},
    \\  {"scope": "account", "count": 30, "per_s": 1.0}]},
    \\ "secrets": ["bot_token"], "api_base": "https://api.telegram.org"}
;

comptime {
    exogate.serveChannel(@This());
}

// -------------------------------------------------------------------------------- what came in
const Message = struct {
    peer: []const u8,
    kind: enum { direct, group },
    sender: struct { id: []const u8, name: ?[]const u8, is_bot: bool },
    text: []const u8,
    platform_id: []const u8,
    thread: ?[]const u8,
    timestamp: ?[]const u8,
    reply_to: ?[]const u8,
    mentions_me: bool,
    attachments: []const Attachment,
    answer: struct { message_id: ?i64 },
};

const Attachment = struct { name: []const u8, mime: ?[]const u8, size: ?i64 };

pub fn parse(event: Object) Failed![]const u8 {
    const body = objectOf(try exogate.parse(textOf(event.get("body")) orelse ""));
    const username = std.mem.trimStart(u8, textOf(objectOf(event.get("config")).get("username")) orelse "", "@");
    if (values.is(event, "transport", "poll")) return answered(body, username, values.truth(event.get("skip")));
    const id = values.numberOf(body.get("update_id")) orelse return exogate.refuse("The update has no update_id.", .{});
    const message = try messageOf(body, id, username) orelse return "{\"messages\": []}";
    return exogate.stringify(.{ .messages = .{message} });
}

/// What getUpdates says; `state` is the offset that confirms it, and all that is wanted to skip it.
fn answered(body: Object, username: []const u8, skip: bool) Failed![]const u8 {
    if (!values.truth(body.get("ok")))
        return exogate.refuse("Telegram gave no updates: {s}", .{textOf(body.get("description")) orelse "it does not say why"});
    var messages: std.ArrayList(Message) = .empty;
    var last: ?i64 = null;
    for (values.itemsOf(body.get("result"))) |item| {
        const update = objectOf(item);
        const id = values.numberOf(update.get("update_id")) orelse continue;
        last = @max(last orelse id, id);
        if (skip) continue;
        if (try messageOf(update, id, username)) |message| try messages.append(exogate.allocator, message);
    }
    const state: ?[]const u8 = if (last) |id| try exogate.print("{d}", .{id +| 1}) else null;
    return exogate.stringify(.{ .messages = messages.items, .state = state });
}

/// Edited messages, posts of channels and everything else make no turn, nor does what nobody said.
fn messageOf(update: Object, update_id: i64, username: []const u8) Failed!?Message {
    const message = objectOf(update.get("message"));
    const chat = objectOf(message.get("chat"));
    const is_direct = values.is(chat, "type", "private");
    if (values.is(chat, "type", "channel") or values.truth(message.get("is_automatic_forward"))) return null;
    // An anonymous admin, or somebody who speaks as a channel, comes as a bot that stands for all of them.
    const person = objectOf(message.get("from"));
    const posing = objectOf(message.get("sender_chat"));
    const sender = if (posing.count() > 0) posing else person;
    const said = try wordsOf(message);
    const is_forwarded = message.get("forward_origin") != null or message.get("forward_date") != null;
    const text = if (is_forwarded) try values.forwarded(said) else said;
    const attachments = try attachmentsOf(message);
    if (text.len == 0 and attachments.len == 0) return null;
    const is_topic = values.truth(message.get("is_topic_message"));
    const replied = objectOf(message.get("reply_to_message"));
    const is_reply_to_me = username.len > 0 and
        std.ascii.eqlIgnoreCase(textOf(objectOf(replied.get("from")).get("username")) orelse "", username);
    return .{
        .peer = try idOf(chat.get("id")) orelse return null,
        .kind = if (is_direct) .direct else .group,
        .sender = .{
            .id = try idOf(sender.get("id")) orelse return null,
            .name = try nameOf(sender),
            .is_bot = posing.count() == 0 and values.truth(person.get("is_bot")),
        },
        .text = text,
        .platform_id = try exogate.print("{d}", .{update_id}),
        .thread = if (is_topic) try idOf(message.get("message_thread_id")) else null,
        .timestamp = try idOf(message.get("date")),
        .reply_to = try idOf(replied.get("message_id")),
        .mentions_me = is_reply_to_me or mentions(text, username),
        .attachments = attachments,
        .answer = .{ .message_id = values.numberOf(message.get("message_id")) },
    };
}

fn idOf(value: ?Value) Failed!?[]const u8 {
    const number = values.numberOf(value) orelse return textOf(value);
    return try exogate.print("{d}", .{number});
}

fn nameOf(sender: Object) Failed!?[]const u8 {
    const first = textOf(sender.get("first_name")) orelse return textOf(sender.get("title"));
    const last = textOf(sender.get("last_name")) orelse return first;
    return try exogate.print("{s} {s}", .{ first, last });
}

fn wordsOf(message: Object) Failed![]const u8 {
    if (textOf(message.get("text")) orelse textOf(message.get("caption"))) |said| return said;
    const contact = objectOf(message.get("contact"));
    if (textOf(contact.get("phone_number"))) |number|
        return exogate.print("Contact: {s}, {s}", .{ try nameOf(contact) orelse "", number });
    const place = objectOf(message.get("location"));
    if (degreesOf(place.get("latitude"))) |latitude| if (degreesOf(place.get("longitude"))) |longitude| {
        const venue = textOf(objectOf(message.get("venue")).get("title")) orelse "Location";
        return exogate.print("{s}: {d:.6}, {d:.6}", .{ venue, latitude, longitude });
    };
    return "";
}

fn degreesOf(value: ?Value) ?f64 {
    return switch (value orelse return null) {
        .integer => |whole| @floatFromInt(whole),
        .float => |float| float,
        else => null,
    };
}

fn attachmentsOf(message: Object) Failed![]const Attachment {
    var found: std.ArrayList(Attachment) = .empty;
    for ([_][]const u8{ "photo", "animation", "document", "audio", "video", "voice", "video_note", "sticker", "story", "paid_media", "poll", "dice", "game" }) |kind| {
        const given = message.get(kind) orelse continue;
        const sizes = values.itemsOf(given); // of a photo, the largest is the last
        const file = if (sizes.len > 0) objectOf(sizes[sizes.len - 1]) else objectOf(given);
        if (file.count() == 0 or values.equal(kind, "document") and message.get("animation") != null) continue;
        try found.append(exogate.allocator, .{
            .name = textOf(file.get("file_name")) orelse
                if (textOf(file.get("emoji"))) |emoji| try exogate.print("{s} {s}", .{ kind, emoji }) else kind,
            .mime = textOf(file.get("mime_type")),
            .size = values.numberOf(file.get("file_size")),
        });
    }
    return found.items;
}

/// Whether `@username` stands in the text as a whole word.
fn mentions(text: []const u8, username: []const u8) bool {
    if (username.len == 0) return false;
    var at: usize = 0;
    while (std.mem.indexOfScalarPos(u8, text, at, '@')) |mark| {
        at = mark + 1;
        const rest = text[at..];
        if (!std.ascii.startsWithIgnoreCase(rest, username)) continue;
        if (rest.len == username.len) return true;
        const after = rest[username.len];
        if (!std.ascii.isAlphanumeric(after) and after != '_') return true;
    }
    return false;
}

// ------------------------------------------------------------------------------- what goes out
const Entity = struct {
    type: []const u8,
    offset: usize = 0,
    length: usize = 0,
    url: ?[]const u8 = null,
    language: ?[]const u8 = null,
};

const Body = struct {
    chat_id: Value,
    message_thread_id: ?i64 = null,
    message_id: ?i64 = null,
    action: ?[]const u8 = null,
    text: ?[]const u8 = null,
    entities: ?[]const Entity = null,
    link_preview_options: ?struct { is_disabled: bool = true } = null,
    reply_parameters: ?struct { message_id: i64, allow_sending_without_reply: bool = true } = null,
};

const most_units = 4096;

pub fn format(reply: Object) Failed![]const u8 {
    var body = Body{ .chat_id = chatOf(textOf(reply.get("peer")) orelse "") };
    if (!values.is(reply, "do", "edit")) body.message_thread_id = integerOf(textOf(reply.get("thread")));
    if (values.is(reply, "do", "typing")) {
        body.action = "typing";
        return request(reply, "sendChatAction", body, false);
    }
    const source = textOf(reply.get("text")) orelse "";
    var document = try markdown.read(source);
    if (isBlank(document.text)) document = .{ .text = source, .spans = &.{} };
    if (isBlank(document.text)) return "{\"requests\": []}";
    if (markdown.units(document.text) > most_units) return "{\"too_long\": true}";
    body.text = document.text;
    body.entities = try entitiesOf(document);
    body.link_preview_options = .{};
    if (values.is(reply, "do", "edit")) {
        body.message_id = integerOf(textOf(reply.get("edits"))) orelse return exogate.refuse("The message to edit has no number.", .{});
        return request(reply, "editMessageText", body, true);
    }
    if (values.truth(reply.get("is_group"))) {
        if (values.numberOf(objectOf(reply.get("answer")).get("message_id"))) |id| body.reply_parameters = .{ .message_id = id };
    }
    return request(reply, "sendMessage", body, true);
}

fn isBlank(text: []const u8) bool {
    return std.mem.indexOfNone(u8, text, " \t\r\n") == null;
}

fn chatOf(peer: []const u8) Value {
    return if (integerOf(peer)) |id| .{ .integer = id } else .{ .string = peer };
}

fn integerOf(text: ?[]const u8) ?i64 {
    return std.fmt.parseInt(i64, text orelse return null, 10) catch null;
}

fn request(reply: Object, method: []const u8, body: Body, is_message: bool) Failed![]const u8 {
    const base = textOf(reply.get("api_base")) orelse "";
    return exogate.stringify(.{
        .requests = .{.{
            .url = try exogate.print("{s}/bot${{secret:bot_token}}/{s}", .{ base, method }),
            .headers = .{ .@"content-type" = "application/json" },
            .body = try exogate.stringify(body),
        }},
        .edit = is_message,
    });
}

/// In UTF-16. Code has nothing else in it and is not in a link, and nothing is bold twice.
fn entitiesOf(document: markdown.Document) Failed![]const Entity {
    var list = Entities{ .offsets = try exogate.allocator.alloc(usize, document.text.len + 1) };
    var units: usize = 0;
    for (document.text, 0..) |byte, at| {
        list.offsets[at] = units;
        if (byte & 0xc0 != 0x80) units += if (byte >= 0xf0) 2 else 1;
    }
    list.offsets[document.text.len] = units;
    var link_end: usize = 0;
    var heading_end: usize = 0;
    for (document.spans, 0..) |span, place| {
        const after = document.spans[place + 1 ..];
        switch (span.kind) {
            .quote => try list.add(.{ .type = "blockquote" }, span.start, span.end),
            .link => {
                link_end = span.end;
                try list.add(.{ .type = "text_link", .url = span.value }, span.start, span.end);
            },
            .code => if (span.end > link_end) try list.add(.{ .type = "code" }, span.start, span.end),
            .pre => try list.add(.{ .type = "pre", .language = if (span.value.len > 0) span.value else null }, span.start, span.end),
            .heading => {
                heading_end = span.end;
                try list.around("bold", span, after);
            },
            .bold => if (span.end > heading_end) try list.around("bold", span, after),
            .italic => try list.around("italic", span, after),
            .strike => try list.around("strikethrough", span, after),
        }
    }
    return list.found.items;
}

const most_entities = 100; // what Telegram keeps of a message

const Entities = struct {
    offsets: []usize,
    found: std.ArrayList(Entity) = .empty,

    fn add(self: *Entities, what: Entity, start: usize, end: usize) Failed!void {
        if (start == end or self.found.items.len == most_entities) return;
        var entity = what;
        entity.offset = self.offsets[start];
        entity.length = self.offsets[end] - entity.offset;
        try self.found.append(exogate.allocator, entity);
    }

    /// What is not code of a span; `after` are the spans that come after it.
    fn around(self: *Entities, name: []const u8, span: markdown.Span, after: []const markdown.Span) Failed!void {
        var at = span.start;
        for (after) |inner| {
            if (inner.start >= span.end) break;
            if (inner.kind != .code) continue;
            try self.add(.{ .type = name }, at, inner.start);
            at = inner.end;
        }
        try self.add(.{ .type = name }, at, span.end);
    }
};
