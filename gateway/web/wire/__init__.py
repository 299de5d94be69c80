"""HTTP and WebSockets on their transports, written by hand where a library does not do what is needed.

Why not a library's server for all of it:

- **Bounds before anything is read.** A head, a body, a frame, a message of many fragments, pings that nobody
  reads the answers to, and all unauthenticated connections together have limits and deadlines, and each
  refusal says why. `http.py` puts them around uvicorn's parser callbacks.
- **One write for the frames of one pass of the loop.** A streamed answer is many small frames for many readers;
  a task, a lock and a system call for each of them cost more than the model's own bytes. `frames.py` reads short
  text frames itself and gives everything else to the parser of `websockets`.
- **Nobody waits for a slow reader.** What cannot be had later waits within a bound; the rest is refused until
  there is room and read again from the run. A peer that takes nothing is closed (`frames.py`).
- **Seats are taken from those who hold most.** Connections are counted by address; strangers make room, the newest
  of the address with most of them first (`connections.py`).
- **Who is there is read once.** `visitors.py` reads addresses and headers, and checks Host, Origin and sizes before
  authentication.
- **A stop loses no answer.** `server.py` closes its listeners first, lets requests finish and then ends them.
"""
