;; Answers with a number that JSON does not have.
(module
  {{base}}
  (data (i32.const 600) "{\22a\22: NaN}")
  (func (export "handle-tool-call") (param $input i32) (param $length i32) (result i32)
    (call $ok (i32.const 600) (i32.const 10))))
