;; Answers at an odd address.
(module
  {{base}}
  (func (export "handle-tool-call") (param $input i32) (param $length i32) (result i32)
    (drop (call $ok (local.get $input) (local.get $length))) (i32.const 33)))
