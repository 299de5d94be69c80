"""One turn: a pure machine that wishes, and the driver that grants its wishes."""
