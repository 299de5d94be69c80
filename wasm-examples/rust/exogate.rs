//! What a tool needs to speak with the gateway: texts in and out by the canonical ABI, the host's
//! log, and JSON. The standard library alone, no crates.
use std::alloc::{alloc, realloc, Layout};
use std::collections::BTreeMap;

/// A text as the host reads it: where it is and how long.
#[repr(C)]
pub struct Text(*const u8, usize);

/// A `result<string, string>` in memory.
#[repr(C)]
pub struct Answer(u32, Text);

fn text(value: String) -> Text {
    let kept = value.into_bytes().leak(); // an instance lives for one call
    Text(kept.as_ptr(), kept.len())
}

#[no_mangle]
unsafe extern "C" fn cabi_realloc(old: *mut u8, old_len: usize, align: usize, len: usize) -> *mut u8 {
    if len == 0 {
        return align as *mut u8;
    }
    let new = if old_len == 0 {
        alloc(Layout::from_size_align_unchecked(len, align))
    } else {
        realloc(old, Layout::from_size_align_unchecked(old_len, align), len)
    };
    if new.is_null() {
        std::process::abort();
    }
    new
}

#[export_name = "describe"]
extern "C" fn describe() -> *const Text {
    Box::into_raw(Box::new(text(crate::DESCRIPTION.to_string())))
}

#[export_name = "handle-tool-call"]
unsafe extern "C" fn handle(input: *mut u8, len: usize) -> *const Answer {
    let input = String::from_utf8_unchecked(std::slice::from_raw_parts(input, len).to_vec());
    let output = Json::parse(&input)
        .ok_or("The input is not valid JSON.".to_string())
        .and_then(|call| crate::call(&call));
    let answer = match output {
        Ok(json) => Answer(0, text(json)),
        Err(sentence) => Answer(1, text(sentence)),
    };
    Box::into_raw(Box::new(answer))
}

#[derive(Clone, Copy)]
#[allow(dead_code)]
pub enum Level {
    Debug,
    Info,
    Warn,
    Error,
}

#[link(wasm_import_module = "exogate:plugin/log@1.0.0")]
extern "C" {
    #[link_name = "write"]
    fn log_write(level: u32, message: *const u8, len: usize);
}

pub fn log(level: Level, message: &str) {
    unsafe { log_write(level as u32, message.as_ptr(), message.len()) }
}

/// A value of JSON.
#[allow(dead_code)]
pub enum Json {
    Null,
    Bool(bool),
    Number(f64),
    Text(String),
    List(Vec<Json>),
    Object(BTreeMap<String, Json>),
}

impl Json {
    pub fn parse(source: &str) -> Option<Json> {
        let mut reader = Reader { source, at: 0 };
        let value = reader.value(0)?;
        reader.space();
        (reader.at == source.len()).then_some(value)
    }

    pub fn get(&self, name: &str) -> Option<&Json> {
        match self {
            Json::Object(members) => members.get(name),
            _ => None,
        }
    }

    pub fn as_text(&self) -> Option<&str> {
        match self {
            Json::Text(text) => Some(text),
            _ => None,
        }
    }
}

const MOST_DEPTH: u32 = 100;

struct Reader<'a> {
    source: &'a str,
    at: usize,
}

impl Reader<'_> {
    fn rest(&self) -> &str {
        &self.source[self.at..]
    }

    fn space(&mut self) {
        self.at = self.source.len() - self.rest().trim_start_matches([' ', '\t', '\n', '\r']).len();
    }

    fn takes(&mut self, token: &str) -> bool {
        self.space();
        let found = self.rest().starts_with(token);
        self.at += if found { token.len() } else { 0 };
        found
    }

    fn value(&mut self, depth: u32) -> Option<Json> {
        if depth > MOST_DEPTH {
            return None;
        }
        self.space();
        match self.rest().chars().next()? {
            '{' => self.object(depth),
            '[' => self.list(depth),
            '"' => self.text().map(Json::Text),
            _ if self.takes("null") => Some(Json::Null),
            _ if self.takes("true") => Some(Json::Bool(true)),
            _ if self.takes("false") => Some(Json::Bool(false)),
            _ => self.number(),
        }
    }

    fn object(&mut self, depth: u32) -> Option<Json> {
        let mut members = BTreeMap::new();
        self.at += 1;
        while !self.takes("}") {
            if !members.is_empty() && !self.takes(",") {
                return None;
            }
            self.space();
            let name = self.text()?;
            if !self.takes(":") {
                return None;
            }
            members.insert(name, self.value(depth + 1)?);
        }
        Some(Json::Object(members))
    }

    fn list(&mut self, depth: u32) -> Option<Json> {
        let mut items = Vec::new();
        self.at += 1;
        while !self.takes("]") {
            if !items.is_empty() && !self.takes(",") {
                return None;
            }
            items.push(self.value(depth + 1)?);
        }
        Some(Json::List(items))
    }

    fn number(&mut self) -> Option<Json> {
        let rest = self.rest();
        let end = rest.find(|c: char| !c.is_ascii_digit() && !"+-.eE".contains(c));
        let digits = &rest[..end.unwrap_or(rest.len())];
        let value = digits.parse().ok()?;
        self.at += digits.len();
        Some(Json::Number(value))
    }

    fn text(&mut self) -> Option<String> {
        if !self.rest().starts_with('"') {
            return None;
        }
        self.at += 1;
        let mut made = String::new();
        loop {
            let plain = self.rest().find(['"', '\\'])?;
            made.push_str(&self.source[self.at..self.at + plain]);
            self.at += plain + 1;
            if self.source.as_bytes()[self.at - 1] == b'"' {
                return Some(made);
            }
            let escape = *self.source.as_bytes().get(self.at)?;
            self.at += 1;
            made.push(match escape {
                b'n' => '\n',
                b't' => '\t',
                b'r' => '\r',
                b'b' => '\u{8}',
                b'f' => '\u{c}',
                b'u' => self.escaped()?,
                b'"' | b'\\' | b'/' => escape as char,
                _ => return None,
            });
        }
    }

    /// After `\u`: one character, of one or two such escapes.
    fn escaped(&mut self) -> Option<char> {
        let first = self.four()?;
        if !(0xD800..0xDC00).contains(&first) || !self.rest().starts_with("\\u") {
            return Some(char::from_u32(first).unwrap_or('\u{FFFD}'));
        }
        self.at += 2;
        let second = self.four()?.wrapping_sub(0xDC00);
        Some(char::from_u32(0x10000 + ((first - 0xD800) << 10) + second).unwrap_or('\u{FFFD}'))
    }

    fn four(&mut self) -> Option<u32> {
        let digits = self.source.get(self.at..self.at + 4)?;
        self.at += 4;
        u32::from_str_radix(digits, 16).ok()
    }
}
