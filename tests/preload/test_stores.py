"""memcached and Redis under the preload, with clients of their protocols."""

import random
import socket
import unittest

from preloaded import CONNECTIONS, SECONDS_MAX, PreloadCase, free_port

KEYS = 200
REQUESTS = 2000


class Stores(PreloadCase):
    def play(self, port, store, fetch):
        """Writes and reads random values over many connections, in bursts, and compares each with
        the last value written. A key belongs to one connection, so the order of its writes is
        known."""
        rng = random.Random(1)
        address = ("127.0.0.1", port)
        sockets = [socket.create_connection(address, SECONDS_MAX) for _ in range(CONNECTIONS)]
        files = [connection.makefile("rb") for connection in sockets]
        values = [{} for _ in sockets]
        for _ in range(REQUESTS // CONNECTIONS):
            requests = []
            for at, connection in enumerate(sockets):
                key = f"{at}-{rng.randrange(KEYS // CONNECTIONS)}"
                if key not in values[at] or rng.random() < 0.5:
                    values[at][key] = rng.randbytes(rng.choice([1, 100, 10_000, 500_000]))
                    requests.append((*store(key, values[at][key]), None))
                else:
                    requests.append((*fetch(key), values[at][key]))
                connection.sendall(requests[-1][0])
            for file, (_, check_reply, value) in zip(files, requests):
                check_reply(file, value)
        for file, connection in zip(files, sockets):
            file.close()
            connection.close()

    def expect(self, line):
        def check_reply(file, _):
            self.assertEqual(file.readline(), line)
        return check_reply

    def test_memcached(self):
        port = free_port()
        options = ("-u", "root", "-l", "127.0.0.1", "-p", str(port), "-U", "0", "-t", "4")
        memcached = self.preload(self.path_of("memcached"), *options, port=port)

        def store(key, value):
            command = f"set {key} 0 0 {len(value)}\r\n".encode() + value + b"\r\n"
            return command, self.expect(b"STORED\r\n")

        def value_of(file, value):
            self.assertEqual(int(file.readline().split()[3]), len(value))
            self.assertEqual(file.read(len(value) + 2), value + b"\r\n")
            self.assertEqual(file.readline(), b"END\r\n")

        self.play(port, store, lambda key: (f"get {key}\r\n".encode(), value_of))
        memcached.end()

    def test_redis(self):
        port = free_port()
        options = ("--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", self.folder)
        redis = self.preload(self.path_of("redis-server"), *options, port=port)

        def store(key, value):
            head = f"*3\r\n$3\r\nSET\r\n${len(key)}\r\n{key}\r\n${len(value)}\r\n".encode()
            return head + value + b"\r\n", self.expect(b"+OK\r\n")

        def fetch(key):
            return f"*2\r\n$3\r\nGET\r\n${len(key)}\r\n{key}\r\n".encode(), value_of

        def value_of(file, value):
            self.assertEqual(file.readline(), f"${len(value)}\r\n".encode())
            self.assertEqual(file.read(len(value) + 2), value + b"\r\n")

        self.play(port, store, fetch)
        # BGSAVE forks a child that inherits the descriptors.
        with socket.create_connection(("127.0.0.1", port), SECONDS_MAX) as connection:
            connection.sendall(b"*1\r\n$6\r\nBGSAVE\r\n")
            self.assertIn(b"started", connection.recv(100))
        self.play(port, store, fetch)
        redis.end()


if __name__ == "__main__":
    unittest.main()
