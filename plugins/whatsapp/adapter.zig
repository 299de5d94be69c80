//! WhatsApp: what the Cloud API pushes becomes messages; Markdown becomes WhatsApp's own marks.
const std = @import("std");
const exogate = @import("exogate");
const markdown = @import("markdown");
const values = @import("values");

const Object = exogate.Object;
const Failed = exogate.Failed;
const objectOf = exogate.objectOf;
const textOf = exogate.textOf;
const itemsOf = values.itemsOf;
const equal = values.equal;
const is = values.is;
const write = values.write;

// 131056: too many to one person; one in 6 seconds is allowed, and 45 at once.
pub const describe =
    \\{"name": "whatsapp", "version": "1.0.0", "kind": "channel", "channel": "whatsapp",
    \\ "description": "Talks with people on WhatsApp, by Meta's Cloud API.",
    \\ "transports": [{"type": "webhook", "methods": ["GET", "POST"], "max_body_bytes": 4194304,
    \\   "challenge": {"secret": "verify_token", "given": "hub.verify_token",
    \\                 "answer": "hub.challenge", "expects": {"hub.mode": "subscribe"}}}],
    \\ "verify": {"type": "hmac_sha256", "secret": "app_secret",
    \\            "header": "x-hub-signature-256", "prefix": "sha256="},
    \\ "outbound": {"secrets": ["access_token"], "message_id": "messages.0.id", "error": "error.code",
    \\              "retry_errors": ["4", "80007", "130429", "131056", "131016", "131057", "133004"],
    \\              "typing_every_s": 20.0},
    \\ "limits": {"text": 4000, "unit": "utf16",
    \\            "rates": [{"scope": "peer", "count": 45, "per_s": 270.0},
    \\                      {"scope": "account", "count": 80, "per_s": 1.0}]},
    \\ "secrets": ["access_token", "verify_token"],
    \\ "needs": ["phone_number_id"],
    \\ "api_base": "https://graph.facebook.com/v26.0"}
;

comptime {
    exogate.serveChannel(@This());
}

// -------------------------------------------------------------------------------- what came in
const File = struct { url: ?[]const u8, name: ?[]const u8, mime: ?[]const u8 };

const Message = struct {
    peer: []const u8,
    kind: enum { direct, group },
    sender: struct { id: []const u8, name: ?[]const u8, is_self: bool },
    text: []const u8,
    platform_id: []const u8,
    timestamp: ?[]const u8,
    reply_to: ?[]const u8,
    mentions_me: bool,
    attachments: []const File,
};

pub fn parse(event: Object) Failed![]const u8 {
    const me = try phoneNumberId(event);
    const body = objectOf(try exogate.parse(try wellFormed(textOf(event.get("body")) orelse "")));
    var messages: std.ArrayList(Message) = .empty;
    for (itemsOf(body.get("entry"))) |entry| {
        for (itemsOf(objectOf(entry).get("changes"))) |change| {
            if (!is(objectOf(change), "field", "messages")) continue;
            const value = objectOf(objectOf(change).get("value"));
            // An app hears of all its numbers; each is a channel of its own.
            if (!is(objectOf(value.get("metadata")), "phone_number_id", me)) continue;
            for (itemsOf(value.get("statuses"))) |status| try tellFailure(objectOf(status));
            for (itemsOf(value.get("messages"))) |one| {
                if (try messageOf(value, objectOf(one), me)) |message| try messages.append(exogate.allocator, message);
            }
        }
    }
    return exogate.stringify(.{ .messages = messages.items });
}

/// That a message did not arrive is often told only afterwards, such as that the 24 hours are over.
fn tellFailure(status: Object) Failed!void {
    if (!is(status, "status", "failed")) return;
    for (itemsOf(status.get("errors"))) |one| {
        const code = values.numberOf(objectOf(one).get("code")) orelse continue;
        const title = textOf(objectOf(one).get("title")) orelse "";
        exogate.log(.warn, try exogate.print("WhatsApp did not deliver a message: {d} {s}", .{ code, title[0..@min(title.len, 200)] }));
    }
}

/// Nothing that a person wrote: reactions, changes of numbers, of what was said before.
const silent = [_][]const u8{ "reaction", "system", "edit", "revoke", "request_welcome" };

fn messageOf(value: Object, message: Object, me: []const u8) Failed!?Message {
    const kind = textOf(message.get("type")) orelse return null;
    for (silent) |one| if (std.mem.eql(u8, kind, one)) return null;
    const id = idOf(message.get("id")) orelse return null;
    const number = idOf(message.get("from"));
    const contact = contactOf(value, number);
    // The number of a person changes hands, and may be hidden; the id that WhatsApp made for us stays.
    const sender = idOf(message.get("from_user_id")) orelse idOf(contact.get("user_id")) orelse number orelse return null;
    const group = idOf(message.get("group_id"));
    const context = objectOf(message.get("context"));
    const shown = textOf(objectOf(value.get("metadata")).get("display_phone_number")) orelse "";
    const written = try textIn(message, kind);
    const is_forwarded = values.truth(context.get("forwarded")) or values.truth(context.get("frequently_forwarded"));
    const said = if (is_forwarded) try values.forwarded(written) else written;
    const name = try exogate.print("@{s}", .{shown});
    const is_named = shown.len > 0 and std.mem.indexOf(u8, said, name) != null;
    const replied = textOf(context.get("from"));
    return .{
        .peer = group orelse sender,
        .kind = if (group == null) .direct else .group,
        .sender = .{
            .id = sender,
            .name = wholeName(textOf(objectOf(contact.get("profile")).get("name"))),
            .is_self = equal(number, shown) or equal(number, me),
        },
        .text = if (is_named) withoutName(said, name) else said,
        .platform_id = id,
        .timestamp = textOf(message.get("timestamp")),
        .reply_to = idOf(context.get("id")),
        .mentions_me = equal(replied, shown) or equal(replied, me) or is_named,
        .attachments = try filesOf(message, kind),
    };
}

/// What is said of the sender elsewhere in the call.
fn contactOf(value: Object, number: ?[]const u8) Object {
    const contacts = itemsOf(value.get("contacts"));
    for (contacts) |one| if (equal(textOf(objectOf(one).get("wa_id")), number)) return objectOf(one);
    return if (contacts.len == 1 and number == null) objectOf(contacts[0]) else .empty;
}

/// WhatsApp cuts names at a length, and then half of a character may be left, which comes as this mark: no
/// reason to lose what its owner says.
fn wholeName(name: ?[]const u8) ?[]const u8 {
    const given = name orelse return null;
    return given[0 .. std.mem.indexOf(u8, given, "\u{fdd0}") orelse given.len];
}

fn idOf(value: ?exogate.Value) ?[]const u8 {
    const text = textOf(value) orelse return null;
    return if (text.len > 0 and text.len <= 256) text else null;
}

/// `@` and our number at the beginning is no part of what is said: `@15550783881 /help` is a command.
fn withoutName(said: []const u8, name: []const u8) []const u8 {
    const rest = std.mem.trimStart(u8, said, " ");
    const text = if (std.mem.startsWith(u8, rest, name)) std.mem.trimStart(u8, rest[name.len..], " ") else said;
    return if (text.len == 0) said else text;
}

const Form = enum { text, button, image, video, audio, document, sticker, interactive, location, contacts, other };

fn textIn(message: Object, kind: []const u8) Failed![]const u8 {
    const part = objectOf(message.get(kind));
    const form = std.meta.stringToEnum(Form, kind) orelse .other;
    return switch (form) {
        .text => textOf(part.get("body")) orelse "",
        .button => textOf(part.get("text")) orelse "",
        .image, .video, .audio, .document, .sticker => textOf(part.get("caption")) orelse "",
        .interactive => chosen(part),
        .location => located(part),
        .contacts => listed(itemsOf(message.get("contacts"))),
        .other => exogate.print("[sent something of the kind {s}, which cannot be read here]", .{kind[0..@min(kind.len, 40)]}),
    };
}

/// Of buttons, lists and forms: what was chosen or filled in.
fn chosen(part: Object) []const u8 {
    for ([_][]const u8{ "button_reply", "list_reply" }) |name| {
        if (textOf(objectOf(part.get(name)).get("title"))) |title| return title;
    }
    return textOf(objectOf(part.get("nfm_reply")).get("response_json")) orelse "";
}

fn located(part: Object) Failed![]const u8 {
    var out: std.ArrayList(u8) = .empty;
    try write(&out, "[location", .{});
    for ([_][]const u8{ "name", "address" }) |name| {
        if (textOf(part.get(name))) |text| try write(&out, " {s},", .{text});
    }
    try write(&out, " {s} {s}]", .{ try exogate.stringify(part.get("latitude")), try exogate.stringify(part.get("longitude")) });
    return out.items;
}

fn listed(contacts: []const exogate.Value) Failed![]const u8 {
    var out: std.ArrayList(u8) = .empty;
    for (contacts) |one| {
        const contact = objectOf(one);
        try write(&out, "{s}[contact {s}", .{ if (out.items.len == 0) "" else "\n", textOf(objectOf(contact.get("name")).get("formatted_name")) orelse "" });
        for (itemsOf(contact.get("phones"))) |phone| try write(&out, " {s}", .{textOf(objectOf(phone).get("phone")) orelse ""});
        try write(&out, "]", .{});
    }
    return out.items;
}

fn filesOf(message: Object, kind: []const u8) Failed![]const File {
    switch (std.meta.stringToEnum(Form, kind) orelse .other) {
        .image, .video, .audio, .document, .sticker => {},
        else => return &.{},
    }
    const part = objectOf(message.get(kind));
    return exogate.allocator.dupe(File, &.{.{
        .url = textOf(part.get("url")),
        .name = textOf(part.get("filename")) orelse kind,
        .mime = textOf(part.get("mime_type")),
    }});
}

/// Names that were cut at a length may end with half of a character: `\ud83d` alone is no JSON for us.
fn wellFormed(body: []const u8) Failed![]const u8 {
    if (std.mem.indexOf(u8, body, "\\ud") == null and std.mem.indexOf(u8, body, "\\uD") == null) return body;
    const out = try exogate.allocator.dupe(u8, body);
    var at: usize = 0;
    while (std.mem.indexOfScalarPos(u8, out, at, '\\')) |start| {
        at = start + 2;
        const first = escapeAt(out, start) orelse continue;
        at = start + 6;
        if (first & 0xf800 != 0xd800) continue;
        const next = escapeAt(out, at) orelse 0;
        if (first & 0xfc00 == 0xd800 and next & 0xfc00 == 0xdc00) at += 6 else @memcpy(out[start + 2 ..][0..4], "fffd");
    }
    return out;
}

fn escapeAt(text: []const u8, at: usize) ?u16 {
    if (at + 6 > text.len or text[at] != '\\' or text[at + 1] != 'u') return null;
    return std.fmt.parseInt(u16, text[at + 2 ..][0..4], 16) catch null;
}

// -------------------------------------------------------------------------------- what goes out
/// WhatsApp refuses longer ones.
const most_units = 4096;

const Context = struct { message_id: []const u8 };

const Outgoing = struct {
    messaging_product: []const u8 = "whatsapp",
    recipient_type: []const u8,
    to: ?[]const u8 = null,
    recipient: ?[]const u8 = null,
    context: ?Context = null,
    type: []const u8 = "text",
    text: struct { preview_url: bool = false, body: []const u8 },
};

pub fn format(reply: Object) Failed![]const u8 {
    if (is(reply, "do", "typing")) return typing(reply);
    const peer = textOf(reply.get("peer")) orelse return exogate.refuse("Nobody is named whom to send it to.", .{});
    const text = try marked(try markdown.read(textOf(reply.get("text")) orelse ""));
    if (markdown.units(text) > most_units) return exogate.stringify(.{ .requests = &.{}, .too_long = true });
    const is_group = values.truth(reply.get("is_group"));
    const is_number = std.mem.indexOfNone(u8, peer, "+0123456789") == null;
    return sent(reply, try exogate.stringify(Outgoing{
        .recipient_type = if (is_group) "group" else "individual",
        .to = if (is_group or is_number) peer else null,
        .recipient = if (is_group or is_number) null else peer,
        .context = if (is_group) contextOf(reply) else null,
        .text = .{ .body = text },
    }));
}

/// Shown under the message that is answered, which counts as read then; groups have no such thing.
fn typing(reply: Object) Failed![]const u8 {
    const context = contextOf(reply);
    if (context == null or values.truth(reply.get("is_group"))) return exogate.stringify(.{ .requests = &.{} });
    return sent(reply, try exogate.stringify(.{
        .messaging_product = "whatsapp",
        .status = "read",
        .message_id = context.?.message_id,
        .typing_indicator = .{ .type = "text" },
    }));
}

fn contextOf(reply: Object) ?Context {
    return .{ .message_id = textOf(reply.get("reply_to")) orelse return null };
}

fn sent(reply: Object, body: []const u8) Failed![]const u8 {
    const base = textOf(reply.get("api_base")) orelse "";
    return exogate.stringify(.{ .requests = .{.{
        .method = "POST",
        .url = try exogate.print("{s}/{s}/messages", .{ base, try phoneNumberId(reply) }),
        .headers = .{ .authorization = "Bearer ${secret:access_token}", .@"content-type" = "application/json" },
        .body = body,
    }} });
}

fn phoneNumberId(given: Object) Failed![]const u8 {
    const id = textOf(objectOf(given.get("config")).get("phone_number_id")) orelse "";
    if (id.len > 0 and std.mem.indexOfNone(u8, id, "0123456789") == null) return id;
    return exogate.refuse("Set config.phone_number_id to the id of the number that WhatsApp Manager shows, as a text of digits.", .{});
}

// ------------------------------------------------------------------------------- its own marks
/// `*bold*`, `_italic_`, `~strike~`, code and quotes as in Markdown; a heading is bold, a link is
/// followed by its address.
fn marked(document: markdown.Document) Failed![]const u8 {
    var out: std.ArrayList(u8) = .empty;
    var walk = document.walk();
    var label: usize = 0; // where the words of the link begin
    var quoted = false;
    var bold: usize = 0;
    while (try walk.next()) |piece| switch (piece) {
        .open => |span| {
            if (span.kind == .quote) {
                quoted = true;
                try write(&out, "> ", .{});
            }
            if (span.kind == .link) label = out.items.len;
            try mark(&out, span, &bold, .open);
        },
        .close => |span| {
            try mark(&out, span, &bold, .close);
            if (span.kind == .quote) quoted = false;
            if (span.kind == .link and !std.mem.eql(u8, out.items[label..], span.value)) try write(&out, " ({s})", .{span.value});
        },
        .words => |words| for (words) |byte| {
            try out.append(exogate.allocator, byte);
            if (quoted and byte == '\n') try write(&out, "> ", .{});
        },
    };
    return out.items;
}

const Edge = enum { open, close };

fn mark(out: *std.ArrayList(u8), span: markdown.Span, bold: *usize, edge: Edge) Failed!void {
    try write(out, "{s}", .{switch (span.kind) {
        .bold, .heading => blk: {
            // A heading may be bold already; two marks would be shown.
            const is_outer = bold.* == @intFromBool(edge == .close);
            bold.* = if (edge == .open) bold.* + 1 else bold.* - 1;
            break :blk if (is_outer) "*" else "";
        },
        .italic => "_",
        .strike => "~",
        .code => "`",
        .pre => if (edge == .open) "```\n" else "\n```",
        .quote, .link => "",
    }});
}
