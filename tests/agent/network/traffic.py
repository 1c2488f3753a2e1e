"""A program that moves bytes over TCP or UDP, for the tests of networks. Runs inside a namespace; standard library only.

sink PORT            accepts connections and reads; for each line on stdin answers with how much it has read
source HOST PORT     connects and writes until it is ended, or until BYTES are written and the other side has closed
"""

from __future__ import annotations

import socket
import sys
import threading

CHUNK = 65536


def sink(port: int) -> None:
    listener = socket.create_server(("0.0.0.0", port), backlog=64)
    read = 0
    lock = threading.Lock()

    def drain(connection: socket.socket) -> None:
        nonlocal read
        with connection:
            while data := connection.recv(CHUNK):
                with lock:
                    read += len(data)

    def accept() -> None:
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=drain, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    print("ready", flush=True)
    for _ in sys.stdin:
        print(read, flush=True)


def source(host: str, port: int, total: int) -> None:
    with socket.create_connection((host, port), timeout=20) as connection:
        connection.settimeout(None)
        print("ready", flush=True)
        left = total
        while total == 0 or left > 0:
            left -= connection.send(b"\0" * min(CHUNK, left if total else CHUNK))
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)
    print("done", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "sink":
        sink(int(sys.argv[2]))
    else:
        source(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]) if len(sys.argv) > 4 else 0)
