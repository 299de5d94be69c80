/* Counts the words and characters of a text. */
#include "exogate.h"

/* What the gateway and the model are told about this plugin. */
const text description = TEXT(
    "{\"name\": \"wordcount\", \"version\": \"0.1.0\", \"kind\": \"tool\","
    " \"description\": \"Counts the words and characters of a text.\","
    " \"tools\": [{\"name\": \"wordcount\", \"category\": \"meta\","
    "   \"description\": \"Counts the words and characters of a text.\","
    "   \"parameters\": {\"type\": \"object\","
    "     \"properties\": {\"text\": {\"type\": \"string\", \"description\": \"the text to count\"}},"
    "     \"required\": [\"text\"], \"additionalProperties\": false},"
    "   \"annotations\": {\"readOnlyHint\": true, \"idempotentHint\": true}}]}");

static bool is_space(char byte) {
    return byte == ' ' || (byte >= 9 && byte <= 13);
}

/* Gets {"tool", "arguments", "call_id", "session", "config"} as JSON and gives JSON back. With
   false, the output is shown to the model: say what is wrong and what to do. */
bool call(text input, text *output) {
    text given;
    if (!json_text(json_member(json_member(input, TEXT("arguments")), TEXT("text")), &given)) {
        *output = TEXT("The argument text has to be a text.");
        return false;
    }
    size_t words = 0, characters = 0;
    for (size_t i = 0; i < given.len; i++) {
        characters += (given.at[i] & 0xC0) != 0x80;
        words += !is_space(given.at[i]) && (i == 0 || is_space(given.at[i - 1]));
    }
    log_text(LOG_INFO, joined(TEXT("counted words: "), decimal(words)));
    *output = joined(joined(TEXT("{\"words\": "), decimal(words)),
                     joined(TEXT(", \"characters\": "), joined(decimal(characters), TEXT("}"))));
    return true;
}
