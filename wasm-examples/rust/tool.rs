//! Counts the words and characters of a text.
mod exogate;

use exogate::{log, Json, Level};

/// What the gateway and the model are told about this plugin.
pub const DESCRIPTION: &str = r#"{
  "name": "wordcount", "version": "0.1.0", "kind": "tool",
  "description": "Counts the words and characters of a text.",
  "tools": [{"name": "wordcount", "category": "meta",
    "description": "Counts the words and characters of a text.",
    "parameters": {"type": "object",
      "properties": {"text": {"type": "string", "description": "the text to count"}},
      "required": ["text"], "additionalProperties": false},
    "annotations": {"readOnlyHint": true, "idempotentHint": true}}]}"#;

/// Gets {"tool", "arguments", "call_id", "session", "config"} and gives JSON back. An `Err` is shown
/// to the model: say what is wrong and what to do.
pub fn call(input: &Json) -> Result<String, String> {
    let given = input.get("arguments").and_then(|arguments| arguments.get("text"));
    let text = given.and_then(Json::as_text).ok_or("The argument text has to be a text.")?;
    let words = text.split_whitespace().count();
    log(Level::Info, &format!("counted {words} words"));
    Ok(format!(r#"{{"words": {words}, "characters": {}}}"#, text.chars().count()))
}
