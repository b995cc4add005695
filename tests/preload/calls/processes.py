"""fork(2), vfork(2), prefork servers, threads, signals."""

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time

from _pair import tcp_pair


def ready(fd, timeout=5000):
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return [events for _, events in poller.poll(timeout)]


near, far = tcp_pair()
epoll = select.epoll()
epoll.register(near, select.EPOLLIN)
print("first", ready(near, 0), epoll.poll(0))

# Children close inherited descriptors, which stay open in the parent.
for _ in range(3):
    print(subprocess.run(["echo", "text"], stdout=subprocess.PIPE, close_fds=True).stdout)
far.send(b"x")
print("after children", ready(near), [e for _, e in epoll.poll(5)])
near.recv(1)

sys.stdout.flush()
child = os.fork()
if not child:
    # The connection is tracked in the parent, and left to the kernel here.
    print("in the child", ready(near), ready(near))
    near.recv(1)
    print("read there", ready(near, 0))
    sys.stdout.flush()
    own, other = tcp_pair()
    other.send(b"x")
    print("its own", ready(own))
    sys.stdout.flush()
    os._exit(0)
time.sleep(0.2)
far.send(b"x")
os.waitpid(child, 0)
print("read elsewhere", ready(near, 0), epoll.poll(0))

# Workers share a listener that existed before fork(2).
listener = socket.create_server(("127.0.0.1", 0))
listener.setblocking(False)
print("listens", ready(listener, 0))
read, write = os.pipe()
workers = []
for _ in range(3):
    sys.stdout.flush()
    worker = os.fork()
    if not worker:
        with select.epoll() as own:
            own.register(listener, select.EPOLLIN | select.EPOLLEXCLUSIVE)
            while True:
                own.poll()
                try:
                    connection, _ = listener.accept()
                except BlockingIOError:
                    continue
                connection.setblocking(True)
                got = connection.recv(10)
                connection.send(got * 2)
                if got == b"end":
                    os._exit(0)
                connection.close()
    workers.append(worker)
for turn in range(50):
    with socket.create_connection(listener.getsockname()) as client:
        client.send(b"%d" % turn)
        assert client.recv(20) == b"%d" % turn * 2
    # One of the workers accepted the connection, so the queue is empty.
    assert ready(listener, 0) == []
for _ in workers:
    with socket.create_connection(listener.getsockname()) as client:
        client.send(b"end")
        client.recv(20)
print("workers", [os.waitpid(worker, 0)[1] for worker in workers])

# Two threads wait for one instance, and a third thread changes it.
a, b = tcp_pair()
found = []
threads = [threading.Thread(target=lambda: found.extend(epoll.poll(10))) for _ in range(2)]
for thread in threads:
    thread.start()
time.sleep(0.2)
epoll.register(a, select.EPOLLIN | select.EPOLLONESHOT)
b.send(b"x")
time.sleep(0.2)
far.send(b"x")
for thread in threads:
    thread.join()
print("threads", sorted(e for _, e in found) in ([1, 1], [1, 1, 1]))

# A signal ends a wait. Its handler may wait, and close and open sockets.
near, far = tcp_pair()
epoll = select.epoll()
epoll.register(near, select.EPOLLIN)
closing = tcp_pair()
epoll.register(closing[0], select.EPOLLIN)


class Ended(Exception):
    pass


def handler(*_):
    ready(near, 0)
    closing[0].close()
    opened.append(tcp_pair())
    raise Ended


opened = []
signal.signal(signal.SIGALRM, handler)
waits = [
    lambda: ready(near, 10_000),
    lambda: epoll.poll(10),
    lambda: select.select([near], [], [], 10),
]
for wait in waits:
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        print("not ended", wait())
    except Ended:
        print("ended")
far.send(b"x")
print("goes on", ready(near), [e for _, e in epoll.poll(5)])

# A signal handler opens a connection while accept(2) blocks.
listener = socket.create_server(("127.0.0.1", 0))


def connects(*_):
    opened.append(socket.create_connection(listener.getsockname()))


signal.signal(signal.SIGALRM, connects)
signal.setitimer(signal.ITIMER_REAL, 0.1)
accepted, _ = listener.accept()
print("nested", ready(accepted, 0), ready(opened[-1], 0))
opened[-1].send(b"x")
print("right ones", ready(accepted), ready(opened[-1], 0))
