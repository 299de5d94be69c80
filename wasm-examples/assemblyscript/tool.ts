// Counts the words and characters of a text.
import { Answer, Level, log } from "./exogate";
import { member, textOf } from "./json";

export { cabi_realloc, describe, handle_tool_call } from "./exogate";

// What the gateway and the model are told about this plugin.
export const DESCRIPTION: string = `{
  "name": "wordcount", "version": "0.1.0", "kind": "tool",
  "description": "Counts the words and characters of a text.",
  "tools": [{"name": "wordcount", "category": "meta",
    "description": "Counts the words and characters of a text.",
    "parameters": {"type": "object",
      "properties": {"text": {"type": "string", "description": "the text to count"}},
      "required": ["text"], "additionalProperties": false},
    "annotations": {"readOnlyHint": true, "idempotentHint": true}}]}`;

// Gets {"tool", "arguments", "call_id", "session", "config"} as JSON and gives JSON back. A refusal
// is shown to the model: say what is wrong and what to do.
export function call(input: string): Answer {
  const text = textOf(member(member(input, "arguments"), "text"));
  if (text == null) return Answer.refused("The argument text has to be a text.");
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
  log(Level.Info, `counted ${words} words`);
  return Answer.ok(`{"words": ${words}, "characters": ${characters}}`);
}
