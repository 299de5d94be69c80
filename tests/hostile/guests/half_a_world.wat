;; Takes calls but does not say what it is.
(component
  (core module $m {{base}}
    (func (export "handle-tool-call") (param i32 i32) (result i32) (call $ok (local.get 0) (local.get 1))))
  (core instance $i (instantiate $m))
  (func (export "handle-tool-call") (param "input" string) (result (result string (error string)))
    (canon lift (core func $i "handle-tool-call") (memory (core memory $i "memory")) (realloc (core func $i "cabi_realloc")))))
