// Counts the words and characters of a text. Built with the public Extism PDK as it is, so that the
// same file runs under any Extism host too.
import { Host, LogLevel, Memory } from "@extism/as-pdk";
import { error_set } from "@extism/as-pdk/lib/env";

import { member, textOf } from "./json";

// What the gateway and the model are told about this plugin.
const DESCRIPTION: string = `{
  "name": "wordcount", "version": "0.1.0", "kind": "tool",
  "description": "Counts the words and characters of a text.",
  "tools": [{"name": "wordcount", "category": "meta",
    "description": "Counts the words and characters of a text.",
    "parameters": {"type": "object",
      "properties": {"text": {"type": "string", "description": "the text to count"}},
      "required": ["text"], "additionalProperties": false},
    "annotations": {"readOnlyHint": true, "idempotentHint": true}}]}`;

function answer(json: string): i32 {
  Host.output(Uint8Array.wrap(String.UTF8.encode(json)));
  return 0;
}

// The sentence is shown to the model: say what is wrong and what to do.
function refuse(sentence: string): i32 {
  error_set(Memory.allocateString(sentence).offset);
  return 1;
}

export function describe(): i32 {
  return answer(DESCRIPTION);
}

// Gets {"tool", "arguments", "call_id", "session", "config"} as JSON and gives JSON back.
export function handle_tool_call(): i32 {
  const text = textOf(member(member(Host.inputString(), "arguments"), "text"));
  if (text == null) return refuse("The argument text has to be a text.");
  let words = 0;
  let characters = 0;
  let inWord = false;
  for (let at = 0; at < text.length; at++) {
    const code = text.charCodeAt(at);
    if (code >= 0xDC00 && code < 0xE000) continue; // the second half of a character
    const isSpace = code == 32 || (code >= 9 && code <= 13);
    characters++;
    if (!isSpace && !inWord) words++;
    inWord = !isSpace;
  }
  Host.log(LogLevel.Info, `counted ${words} words`);
  return answer(`{"words": ${words}, "characters": ${characters}}`);
}
