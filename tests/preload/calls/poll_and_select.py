"""poll(2) and select(2): kinds of descriptors, states of connections, errors, timeouts."""

import ctypes
import os
import select
import socket
import tempfile
import time

from _pair import failure, tcp_pair


def poll(timeout, *wanted):
    poller = select.poll()
    for fd, events in wanted:
        poller.register(fd, events)
    found = dict(poller.poll(timeout))
    return [found.get(fd if isinstance(fd, int) else fd.fileno(), 0) for fd, _ in wanted]


def selected(*sets, timeout=5):
    return [len(found) for found in select.select(*sets, timeout)]


ALL = select.POLLIN | select.POLLPRI | select.POLLOUT | select.POLLRDHUP
near, far = tcp_pair()
read, write = os.pipe()
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
file = tempfile.TemporaryFile()
print("fresh", poll(0, (near, ALL)), selected([near], [near], [near]))
others = [(read, ALL), (write, ALL), (datagrams, ALL), (file, ALL)]
print("others", poll(0, (near, select.POLLIN), *others))
print("closed", poll(0, (near, select.POLLIN), (50, ALL)))
print("closed", failure(select.select, [near, 50], [], [], 0))
far.send(b"x")
print("bytes", poll(5000, (near, select.POLLIN), (read, select.POLLIN)))
print("bytes", selected([near, read], [near], [near]))
os.write(write, b"x")
# While a connection is ready, other descriptors are checked at intervals.
both = lambda: poll(5000, (near, select.POLLIN), (read, select.POLLIN)) == [1, 1]
print("both", any(both() for _ in range(100)))
far.send(b"!", socket.MSG_OOB)
time.sleep(0.1)
print("urgent", poll(5000, (near, ALL)), selected([], [], [near]))
near.recv(10)
near.recv(1, socket.MSG_OOB)
near.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 10)
far.send(b"12345")
time.sleep(0.1)
print("below the mark", poll(0, (near, select.POLLIN)))
far.send(b"67890")
print("at the mark", poll(5000, (near, select.POLLIN)))
near.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
near.recv(100)
near.setblocking(False)
try:
    while True:
        near.send(bytes(100_000))
except BlockingIOError:
    pass
print("full", poll(0, (near, select.POLLOUT)), selected([], [near], [], timeout=0))
while far.recv(1 << 20, socket.MSG_DONTWAIT) and not poll(0, (near, select.POLLOUT))[0]:
    time.sleep(0.01)
print("room", poll(5000, (near, select.POLLOUT)), selected([], [near], []))
near.shutdown(socket.SHUT_RD)
print("own end", poll(0, (near, select.POLLIN | select.POLLRDHUP)))
near.shutdown(socket.SHUT_WR)
far.close()
time.sleep(0.1)
print("over", poll(0, (near, ALL)))

listener = socket.create_server(("127.0.0.1", 0))
listener.setblocking(False)
print("listens", poll(0, (listener, ALL)))
client = socket.create_connection(listener.getsockname())
print("waits", poll(5000, (listener, ALL)), selected([listener], [], []))
accepted, _ = listener.accept()
print("taken", poll(0, (listener, ALL)), failure(listener.accept))

address = listener.getsockname()
listener.close()
refused = socket.socket()
refused.setblocking(False)
print("new", poll(0, (refused, ALL)), refused.connect_ex(address))
print("refused", poll(5000, (refused, ALL)), poll(0, (refused, 0)))
print("refused", selected([refused], [refused], []))
print("why", refused.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), poll(0, (refused, ALL)))

# Closed by fclose(3), then by os.closerange, and the descriptor reused.
library = ctypes.CDLL(None)
library.fdopen.restype = ctypes.c_void_p
library.fclose.argtypes = [ctypes.c_void_p]
near, far = tcp_pair()
print("before", poll(0, (near, ALL)))
number = near.detach()
library.fclose(library.fdopen(number, b"r"))
os.dup2(read, number)
print("a pipe now", poll(0, (number, ALL)))
near, far = tcp_pair()
print("before", poll(0, (near, ALL)))
number = near.detach()
os.closerange(number, number + 1)
os.dup2(write, number)
print("a pipe now", poll(0, (number, ALL)))

begin = time.monotonic()
near, far = tcp_pair()
print("nothing", poll(150, (near, select.POLLIN)), selected([near], [], [], timeout=0.15))
print("in time", 0.3 <= time.monotonic() - begin < 3)
