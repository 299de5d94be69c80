/* What a tool needs to speak with the gateway: texts in and out by the canonical ABI, the host's
   log, and enough of JSON to read arguments. No C library. */
#ifndef EXOGATE_H
#define EXOGATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    const char *at;
    size_t len;
} text;

/* A literal as a text. */
#define TEXT(literal) ((text){(literal), sizeof(literal) - 1})

/* ---------------------------------------------------------- what the tool has to define */
extern const text description;

/* Gives true and JSON, or false and a sentence that is shown to the model. */
bool call(text input, text *output);

/* ------------------------------------------------------------------------------- memory */
/* An instance lives for one call, so memory is handed out in order and never given back. */
extern unsigned char __heap_base;
static uintptr_t heap_used;

static void *take(size_t len, size_t align) {
    if (!heap_used) heap_used = (uintptr_t)&__heap_base;
    uintptr_t start = (heap_used + align - 1) & ~(uintptr_t)(align - 1);
    size_t have = __builtin_wasm_memory_size(0) * 65536;
    if (len > SIZE_MAX - start) __builtin_trap();
    if (start + len > have) {
        size_t pages = (start + len - have + 65535) / 65536;
        if (__builtin_wasm_memory_grow(0, pages) == (size_t)-1) __builtin_trap();
    }
    heap_used = start + len;
    return (void *)start;
}

static void copy(char *to, const char *from, size_t len) {
    while (len--) *to++ = *from++;
}

__attribute__((export_name("cabi_realloc")))
void *cabi_realloc(void *old, size_t old_len, size_t align, size_t len) {
    void *new = take(len, align);
    if (old_len) copy(new, old, old_len < len ? old_len : len);
    return new;
}

/* ------------------------------------------------------------------------------ exports */
__attribute__((export_name("describe")))
const text *exogate_describe(void) {
    return &description;
}

__attribute__((export_name("handle-tool-call")))
const void *exogate_handle(const char *input, size_t len) {
    static struct {
        uint32_t is_error;
        text said;
    } answer;
    answer.is_error = !call((text){input, len}, &answer.said);
    return &answer;
}

/* --------------------------------------------------------------------------------- host */
enum level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };

__attribute__((import_module("exogate:plugin/log@1.0.0"), import_name("write")))
void log_write(enum level level, const char *message, size_t len);

static void log_text(enum level level, text message) {
    log_write(level, message.at, message.len);
}

/* -------------------------------------------------------------------------------- texts */
static text joined(text a, text b) {
    char *made = take(a.len + b.len, 1);
    copy(made, a.at, a.len);
    copy(made + a.len, b.at, b.len);
    return (text){made, a.len + b.len};
}

static text decimal(size_t number) {
    char *end = (char *)take(20, 1) + 20, *start = end;
    do *--start = '0' + number % 10;
    while (number /= 10);
    return (text){start, end - start};
}

static bool same(text a, text b) {
    if (a.len != b.len) return false;
    for (size_t i = 0; i < a.len; i++)
        if (a.at[i] != b.at[i]) return false;
    return true;
}

/* --------------------------------------------------------------------------------- JSON */
/* The host sends valid JSON; these walk over it. Each takes a position and gives the next. */
static size_t json_space(text json, size_t at) {
    while (at < json.len && (json.at[at] == ' ' || (json.at[at] >= 9 && json.at[at] <= 13))) at++;
    return at;
}

static size_t json_string_end(text json, size_t at) {
    for (at++; at < json.len && json.at[at] != '"'; at++)
        if (json.at[at] == '\\') at++;
    return at + 1;
}

static size_t json_end(text json, size_t at) {
    if (json.at[at] == '"') return json_string_end(json, at);
    int depth = 0;
    for (; at < json.len; at++) {
        char byte = json.at[at];
        if (byte == '"') at = json_string_end(json, at) - 1;
        else if (byte == '{' || byte == '[') depth++;
        else if (byte == '}' || byte == ']') {
            if (--depth < 0) return at;
            if (depth == 0) return at + 1;
        } else if (byte == ',' && depth == 0) return at;
    }
    return at;
}

/* The member of an object, as JSON; of length 0 if there is none. */
static text json_member(text json, text name) {
    size_t at = json_space(json, 0);
    if (at >= json.len || json.at[at] != '{') return TEXT("");
    at = json_space(json, at + 1);
    while (at < json.len && json.at[at] == '"') {
        size_t end = json_string_end(json, at);
        text found = {json.at + at + 1, end - at - 2};
        at = json_space(json, end);
        at = json_space(json, at + 1);
        if (at >= json.len) break;
        end = json_end(json, at);
        if (same(found, name)) return (text){json.at + at, end - at};
        at = json_space(json, end);
        at = json_space(json, at + 1);
    }
    return TEXT("");
}

static uint32_t json_hex(const char *at) {
    uint32_t value = 0;
    for (int i = 0; i < 4; i++) value = value * 16 + (at[i] <= '9' ? at[i] - '0' : (at[i] | 32) - 'a' + 10);
    return value;
}

static char *utf8(char *to, uint32_t code) {
    if (code < 0x80) {
        *to++ = code;
        return to;
    }
    int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    static const unsigned char lead[] = {0, 0xC0, 0xE0, 0xF0};
    *to++ = lead[more] | code >> 6 * more;
    while (more--) *to++ = 0x80 | (code >> 6 * more & 0x3F);
    return to;
}

/* What a JSON string says; false if it is none. */
static bool json_text(text json, text *value) {
    if (json.len < 2 || json.at[0] != '"') return false;
    char *made = take(json.len, 1), *to = made;
    const char *at = json.at + 1, *end = json.at + json.len - 1;
    while (at < end) {
        if (*at != '\\') {
            *to++ = *at++;
            continue;
        }
        char escape = at[1];
        at += 2;
        if (escape == 'u' && end - at >= 4) {
            uint32_t code = json_hex(at);
            at += 4;
            if (code >= 0xD800 && code < 0xDC00 && end - at >= 6 && at[0] == '\\' && at[1] == 'u') {
                code = 0x10000 + ((code - 0xD800) << 10) + (json_hex(at + 2) - 0xDC00);
                at += 6;
            }
            to = utf8(to, code >= 0xD800 && code < 0xE000 ? 0xFFFD : code);
        } else {
            *to++ = escape == 'n' ? '\n' : escape == 't' ? '\t' : escape == 'r' ? '\r'
                  : escape == 'b' ? '\b' : escape == 'f' ? '\f' : escape;
        }
    }
    *value = (text){made, to - made};
    return true;
}

#endif
