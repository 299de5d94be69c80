;; Begins with more memory than it may have.
(module
  (memory (export "memory") 2000) {{realloc}} {{answer}} {{describe}}
  (func (export "handle-tool-call") (param $input i32) (param $length i32) (result i32)
    (call $ok (local.get $input) (local.get $length))))
