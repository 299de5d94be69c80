;; Is made of more instances than it may have, each with a memory of its own.
(component
  (core module $small (memory 1000))
  (core instance (instantiate $small)) (core instance (instantiate $small)) (core instance (instantiate $small)) (core instance (instantiate $small)) (core instance (instantiate $small)) (core instance (instantiate $small)) (core instance (instantiate $small)) (core instance (instantiate $small)) (core instance (instantiate $small)) (core instance (instantiate $small))
  (core module $m {{base}}
    (func (export "handle-tool-call") (param $input i32) (param $length i32) (result i32)
      (call $ok (local.get $input) (local.get $length))))
  (core instance $i (instantiate $m))
  {{lifts}})
