;; Fills its memory again and again with one instruction that takes long.
(module
  {{base}}
  (func (export "handle-tool-call") (param $input i32) (param $length i32) (result i32)
    (drop (memory.grow (i32.const 1000)))
    (loop $on (memory.fill (i32.const 65536) (i32.const 1) (i32.const 60000000)) (br $on)) (unreachable)))
