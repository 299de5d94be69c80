;; Hands sixty megabytes to the host.
(module
  (import "exogate:plugin/host@1.0.0" "call" (func $call (param i32 i32 i32 i32 i32)))
  {{base}}
  (data (i32.const 600) "up")
  (func (export "handle-tool-call") (param $input i32) (param $length i32) (result i32)
    (drop (memory.grow (i32.const 960)))
    (memory.fill (i32.const 65536) (i32.const 49) (i32.const 62914560))
    (call $call (i32.const 600) (i32.const 2) (i32.const 65536) (i32.const 62914560) (i32.const 48))
    (call $say (i32.load8_u (i32.const 48)) (i32.load (i32.const 52)) (i32.load (i32.const 56)))))
