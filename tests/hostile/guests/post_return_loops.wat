;; Answers, and then never ends to clean up.
(module
  {{base}}
  (func (export "cabi_post_handle-tool-call") (param i32) (loop $on (br $on)))
  (func (export "handle-tool-call") (param $input i32) (param $length i32) (result i32)
    (call $ok (local.get $input) (local.get $length))))
