;; Puts a new key into the store, for ever.
(module
  (import "exogate:plugin/store@1.0.0" "set" (func $set (param i32 i32 i32 i32 i32 i32 i32)))
  {{base}}
  (data (i32.const 600) "notes")
  (func (export "handle-tool-call") (param $input i32) (param $length i32) (result i32) (local $at i32)
    (loop $on
      (i32.store (i32.const 640) (i32.add (i32.const 0x41414141) (local.get $at)))
      (i32.store8 (i32.const 641) (i32.add (i32.const 65) (i32.and (i32.shr_u (local.get $at) (i32.const 4)) (i32.const 15))))
      (i32.store8 (i32.const 642) (i32.add (i32.const 65) (i32.shr_u (local.get $at) (i32.const 8))))
      (i32.store8 (i32.const 640) (i32.add (i32.const 65) (i32.and (local.get $at) (i32.const 15))))
      (call $set (i32.const 600) (i32.const 5) (i32.const 640) (i32.const 3) (i32.const 65536) (i32.const 60000) (i32.const 48))
      (local.set $at (i32.add (local.get $at) (i32.const 1)))
      (br $on))
    (unreachable)))
