;; Takes all the memory that it can get, and touches it.
(module
  {{base}}
  (func (export "handle-tool-call") (param $input i32) (param $length i32) (result i32)
    (loop $on
      (if (i32.eq (memory.grow (i32.const 16)) (i32.const -1)) (then (return (call $err (local.get $input) (local.get $length)))))
      (memory.fill (i32.mul (i32.sub (memory.size) (i32.const 16)) (i32.const 65536)) (i32.const 1) (i32.const 1048576))
      (br $on))
    (unreachable)))
