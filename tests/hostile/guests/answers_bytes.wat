;; Takes calls in another type than ours: bytes instead of text.
(component
  (core module $m {{base}}
    (func (export "handle-tool-call") (param i32 i32) (result i32) (call $ok (local.get 0) (local.get 1))))
  (core instance $i (instantiate $m))
  (func (export "describe") (result string)
    (canon lift (core func $i "describe") (memory (core memory $i "memory")) (realloc (core func $i "cabi_realloc"))))
  (func (export "handle-tool-call") (param "input" (list u8)) (result (result (list u8) (error string)))
    (canon lift (core func $i "handle-tool-call") (memory (core memory $i "memory")) (realloc (core func $i "cabi_realloc")))))
