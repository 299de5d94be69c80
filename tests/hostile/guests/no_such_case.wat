;; Answers with neither ok nor err.
(module
  {{base}}
  (func (export "handle-tool-call") (param $input i32) (param $length i32) (result i32)
    (call $say (i32.const 77) (local.get $input) (local.get $length))))
