;; Is a component that nothing can be asked of.
(component (core module (func)))
