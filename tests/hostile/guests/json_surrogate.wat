;; Answers with half a surrogate pair.
(module
  {{base}}
  (data (i32.const 600) "\22\5cud800\22")
  (func (export "handle-tool-call") (param $input i32) (param $length i32) (result i32)
    (call $ok (i32.const 600) (i32.const 8))))
