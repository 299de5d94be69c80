;; Never says where it wants its input.
(module
  {{memory}} {{answer}} {{describe}}
  (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) (loop $on (br $on)) (unreachable))
  (func (export "handle-tool-call") (param $input i32) (param $length i32) (result i32)
    (call $ok (local.get $input) (local.get $length))))
