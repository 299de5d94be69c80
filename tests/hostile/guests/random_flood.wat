;; Asks for four gigabytes of randomness.
(module
  (import "exogate:plugin/random@1.0.0" "bytes-hex" (func $random (param i32 i32)))
  {{base}}
  (func (export "handle-tool-call") (param $input i32) (param $length i32) (result i32)
    (call $random (i32.const -1) (i32.const 48))
    (call $say (i32.gt_u (i32.load (i32.const 52)) (i32.const 131072)) (i32.const 600) (i32.const 1)))
  (data (i32.const 600) "1"))
