"""CPython's selectors and asyncio under the preload."""

import socket
import sys
import threading
import unittest

from preloaded import CONNECTIONS, ROUNDS, SECONDS_MAX, PreloadCase, free_port

SELECTOR = """
import selectors, socket, sys
chosen = getattr(selectors, sys.argv[1])()
listener = socket.create_server(("127.0.0.1", int(sys.argv[2])), backlog=100)
listener.setblocking(False)
chosen.register(listener, selectors.EVENT_READ)
pending = {}
while True:
    for key, events in chosen.select():
        if key.fileobj is listener:
            connection = listener.accept()[0]
            if connection.getpeername() is None:
                continue
            connection.setblocking(False)
            pending[connection] = b""
            chosen.register(connection, selectors.EVENT_READ)
            continue
        connection = key.fileobj
        if events & selectors.EVENT_READ:
            got = connection.recv(65536)
            if not got:
                chosen.unregister(connection)
                connection.close()
                del pending[connection]
                continue
            if got == b"end":
                sys.exit(0)
            pending[connection] += got
        if pending[connection]:
            try:
                pending[connection] = pending[connection][connection.send(pending[connection]):]
            except BlockingIOError:
                pass
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if pending[connection] else 0)
        if wanted != key.events:
            chosen.modify(connection, wanted)
"""

ASYNCIO = """
import asyncio, sys
async def serve(reader, writer):
    while got := await reader.read(65536):
        if got == b"end":
            ended.set_result(None)
        writer.write(got)
        await writer.drain()
    writer.close()
async def main():
    global ended
    ended = asyncio.get_running_loop().create_future()
    async with await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1]), backlog=100):
        await ended
asyncio.run(main())
"""


class Python(PreloadCase):
    def echo(self, *arguments):
        port = free_port()
        server = self.preload(sys.executable, "-c", *arguments, str(port), port=port)
        connections = [
            socket.create_connection(("127.0.0.1", port), SECONDS_MAX) for _ in range(CONNECTIONS)
        ]
        for round_number in range(ROUNDS):
            sizes = [1 + 40_000 * (round_number % 5 == at % 5) for at in range(CONNECTIONS)]
            sent = [bytes([round_number, at]) * size for at, size in enumerate(sizes)]
            writers = [
                threading.Thread(target=connection.sendall, args=(data,))
                for connection, data in zip(connections, sent)
            ]
            for writer in writers:
                writer.start()
            for connection, data in zip(connections, sent):
                self.assertEqual(self.receive(connection, len(data)), data)
            for writer in writers:
                writer.join()
        connections[0].sendall(b"end")
        server.process.wait(SECONDS_MAX)
        for connection in connections:
            connection.close()
        server.end()

    def receive(self, connection, count):
        got = bytearray()
        while len(got) < count:
            part = connection.recv(count - len(got))
            self.assertTrue(part, "the server has closed")
            got += part
        return bytes(got)

    def test_selectors_by_select(self):
        self.echo(SELECTOR, "SelectSelector")

    def test_selectors_by_poll(self):
        self.echo(SELECTOR, "PollSelector")

    def test_selectors_by_epoll(self):
        self.echo(SELECTOR, "EpollSelector")

    def test_asyncio(self):
        self.echo(ASYNCIO)


if __name__ == "__main__":
    unittest.main()
