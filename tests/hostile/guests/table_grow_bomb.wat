;; Grows a table as far as it goes.
(module
  (table $t 1 funcref)
  {{base}}
  (func (export "handle-tool-call") (param $input i32) (param $length i32) (result i32)
    (loop $on (br_if $on (i32.ne (table.grow $t (ref.null func) (i32.const 1000)) (i32.const -1))))
    (if (i32.gt_u (table.size $t) (i32.const 20000)) (then (unreachable)))
    (call $ok (local.get $input) (local.get $length))))
