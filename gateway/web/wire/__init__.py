"""HTTP and WebSockets on their transports, written by hand where a library does not do what is needed.

Reasons against a library's server:

- **Limits apply before anything is read.** A head, a body, a frame, a message of many fragments, unread pongs and
  all unauthenticated connections together have limits and deadlines, and each refusal says why. `http.py` puts them
  around uvicorn's parser callbacks.
- **Frames of one pass of the loop leave in one write.** A streamed answer is many small frames for many readers; a
  task, a lock and a system call for each of them cost more than the model's own bytes. `frames.py` reads short text
  frames itself and gives all other frames to the parser of `websockets`.
- **A slow reader delays no writer.** Messages that cannot be read again wait within a limit. Other messages are
  refused until there is room and are read again from the run. A peer that reads nothing is closed (`frames.py`).
- **Evictions hit the addresses with most connections.** Connections are counted by address; above the limit, the
  newest unauthenticated one of the address with most is closed (`connections.py`).
- **Addresses and headers are read once.** `connections.py` reads them, and checks Host, Origin and sizes before
  authentication.
- **A stop loses no answer.** `../server.py` closes its listeners first, lets requests finish and then ends them.
"""
