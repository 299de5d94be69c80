;; Answers with the same key twice.
(module
  {{base}}
  (data (i32.const 600) "{\22a\22: 1, \22a\22: 2}")
  (func (export "handle-tool-call") (param $input i32) (param $length i32) (result i32)
    (call $ok (i32.const 600) (i32.const 16))))
