"""One turn of an agent: a pure machine that wants effects, and the driver that carries them out."""
