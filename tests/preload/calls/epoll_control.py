"""epoll_ctl(2): errors, changes, one-shots, edges, closed descriptors."""

import os
import select

from _pair import failure, tcp_pair

near, far = tcp_pair()
epoll = select.epoll()
print("add", epoll.register(near, select.EPOLLIN))
print("twice", failure(epoll.register, near, select.EPOLLIN))
print("unknown", failure(epoll.modify, far, select.EPOLLIN), failure(epoll.unregister, far))
print("closed", failure(epoll.register, 700, select.EPOLLIN))
print("itself", failure(epoll.register, epoll.fileno(), select.EPOLLIN))
with open("/dev/null") as file:
    print("no waits", failure(epoll.register, file, select.EPOLLIN))
print("room", failure(epoll.poll, 0, -2), failure(epoll.poll, 0, 0))
print("quiet", epoll.poll(0))

far.send(b"ab")
print("level", [e for _, e in epoll.poll(5)], [e for _, e in epoll.poll(0)])
epoll.modify(near, select.EPOLLIN | select.EPOLLONESHOT)
print("once", [e for _, e in epoll.poll(5)], epoll.poll(0))
print("still in", failure(epoll.register, near, select.EPOLLIN))
epoll.modify(near, select.EPOLLIN | select.EPOLLONESHOT)
print("again", [e for _, e in epoll.poll(5)], epoll.poll(0))

epoll.modify(near, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)
print("edges", [e for _, e in epoll.poll(5)], epoll.poll(0.1))
far.send(b"c")
print("next", [e for _, e in epoll.poll(5)], epoll.poll(0.1))
print("read", near.recv(10), epoll.poll(0.1))
far.send(b"d")
print("next", [e for _, e in epoll.poll(5)])
near.recv(10)

epoll.modify(near, select.EPOLLIN | select.EPOLLRDHUP)
far.shutdown(1)
print("half closed", [e for _, e in epoll.poll(5)])
epoll.modify(near, select.EPOLLOUT)
print("not requested", [e for _, e in epoll.poll(5)])
far.close()
near.send(b"x")
for _ in range(100):
    if (found := [e for _, e in epoll.poll(0.05)]) != [select.EPOLLOUT]:
        break
print("reset", found)
print("removed", epoll.unregister(near), failure(epoll.unregister, near), epoll.poll(0))

# A descriptor that is reused is not in the instance.
near, far = tcp_pair()
os.dup2(near.fileno(), 200)
near.close()
epoll.register(200, select.EPOLLIN)
print("before", epoll.poll(0))
os.close(200)
near, far = tcp_pair()
os.dup2(near.fileno(), 200)
far.send(b"x")
print("anew", epoll.poll(0.1), failure(epoll.modify, 200, select.EPOLLIN))
epoll.register(200, select.EPOLLIN)
print("added", [e for _, e in epoll.poll(5)])

# A descriptor that the library does not track, added before the first tracked one.
epoll = select.epoll()
reader, writer = os.pipe()
epoll.register(reader, select.EPOLLIN)
tracked, _far = tcp_pair()
epoll.register(tracked, select.EPOLLIN)
os.write(writer, b"x")
print("untracked first", [e for _, e in epoll.poll(0)])
epoll.close()

a, b = tcp_pair()
epoll = select.epoll()
epoll.register(a, select.EPOLLIN | select.EPOLLEXCLUSIVE)
print("exclusive", failure(epoll.modify, a, select.EPOLLIN), epoll.poll(0))
b.send(b"x")
print("exclusive", [e for _, e in epoll.poll(5)])
epoll.close()
print("closed", failure(epoll.poll, 0), failure(select.epoll.fromfd(700).poll, 0))
