;; Answers with as much as its input says in bytes.
(module
  {{base}}
  (func (export "handle-tool-call") (param $input i32) (param $length i32) (result i32)
    (local $size i32) (local $at i32)
    ;; the input is a decimal number
    (loop $on
      (local.set $size (i32.add (i32.mul (local.get $size) (i32.const 10)) (i32.sub (i32.load8_u (i32.add (local.get $input) (local.get $at))) (i32.const 48))))
      (local.set $at (i32.add (local.get $at) (i32.const 1)))
      (br_if $on (i32.lt_u (local.get $at) (local.get $length))))
    (drop (memory.grow (i32.shr_u (local.get $size) (i32.const 16))))
    (memory.fill (i32.const 65536) (i32.const 49) (local.get $size))
    (call $ok (i32.const 65536) (local.get $size))))
