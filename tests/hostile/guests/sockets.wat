;; Opens a socket of WASI.
(component
  (import "wasi:sockets/tcp-create-socket@0.2.0" (instance $s (export "create" (func (result u32)))))
  (core func $f (canon lower (func $s "create")))
  (core module $m (import "x" "f" (func $f (result i32)))
    {{base}}
    (func (export "handle-tool-call") (param $input i32) (param $length i32) (result i32)
      (drop (call $f)) (call $ok (local.get $input) (local.get $length))))
  (core instance $i (instantiate $m (with "x" (instance (export "f" (func $f))))))
  {{lifts}})
