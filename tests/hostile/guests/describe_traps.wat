;; Gives up when it is asked what it is.
(module
  {{memory}} {{realloc}} {{answer}}
  (func (export "describe") (result i32) (unreachable))
  (func (export "handle-tool-call") (param $input i32) (param $length i32) (result i32)
    (call $ok (local.get $input) (local.get $length))))
