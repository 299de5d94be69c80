;; Describes itself and does nothing.
(component
  (core module $m {{base}})
  (core instance $i (instantiate $m))
  (func (export "describe") (result string)
    (canon lift (core func $i "describe") (memory (core memory $i "memory")) (realloc (core func $i "cabi_realloc")))))
