;; Asks for its input by HTTP, two hundred times.
(module
  (import "exogate:plugin/http@1.0.0" "request" (func $http (param i32 i32 i32)))
  {{base}}
  (func (export "handle-tool-call") (param $input i32) (param $length i32) (result i32) (local $left i32)
    (local.set $left (i32.const 200))
    (loop $on
      (call $http (local.get $input) (local.get $length) (i32.const 48))
      (local.set $left (i32.sub (local.get $left) (i32.const 1)))
      (br_if $on (local.get $left)))
    (call $say (i32.load8_u (i32.const 48)) (i32.load (i32.const 52)) (i32.load (i32.const 56)))))
