;; Answers with a text whose end is before its beginning.
(module
  {{base}}
  (func (export "handle-tool-call") (param $input i32) (param $length i32) (result i32)
    (call $ok (i32.const -16) (i32.const 64))))
