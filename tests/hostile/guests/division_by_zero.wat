;; Divides by zero.
(module
  {{base}}
  (func (export "handle-tool-call") (param $input i32) (param $length i32) (result i32)
    (drop (i32.div_u (local.get $length) (i32.const 0))) (unreachable)))
