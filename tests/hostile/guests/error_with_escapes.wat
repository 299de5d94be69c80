;; Fails with a text that would move a terminal's cursor.
(module
  {{base}}
  (func (export "handle-tool-call") (param $input i32) (param $length i32) (result i32)
    (call $err (i32.const 600) (i32.const 12)))
  (data (i32.const 600) "\1b[2J\1b[1;1Hx"))
