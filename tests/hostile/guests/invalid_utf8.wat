;; Answers with bytes that are no UTF-8.
(module
  {{base}}
  (func (export "handle-tool-call") (param $input i32) (param $length i32) (result i32)
    (call $ok (i32.const 600) (i32.const 4)))
  (data (i32.const 600) "\22\ff\fe\22"))
