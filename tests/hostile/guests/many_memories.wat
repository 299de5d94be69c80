;; Has as many memories as fit, each within the limit.
(module
  {{base}}
  (memory 1000) (memory 1000) (memory 1000) (memory 1000) (memory 1000) (memory 1000) (memory 1000)
  (func (export "handle-tool-call") (param $input i32) (param $length i32) (result i32)
    (call $ok (local.get $input) (local.get $length))))
