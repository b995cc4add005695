"""An epoll descriptor that is waited for, duplicated, passed on or inherited reports the same
events everywhere."""

import os
import select
import socket
import sys

from _pair import failure, tcp_pair


def shared(how):
    near, far = tcp_pair()
    epoll = select.epoll()
    epoll.register(near, select.EPOLLIN)
    assert epoll.poll(0) == []
    far.send(b"x")
    how(epoll, near, far)
    print("  itself", [e for _, e in epoll.poll(5)])
    near.recv(1)
    print("  empty", epoll.poll(0), [e for _, e in epoll.poll(0.05)])
    far.send(b"y")
    print("  anew", [e for _, e in epoll.poll(5)], failure(epoll.register, near, 1))
    epoll.modify(near, select.EPOLLOUT)
    print("  changed", [e for _, e in epoll.poll(5)])
    epoll.unregister(near)
    print("  gone", epoll.poll(0.05))


def nested(epoll, near, far):
    with select.epoll() as outer:
        outer.register(epoll, select.EPOLLIN)
        print("nested", [e for _, e in outer.poll(5)])


def polled(epoll, near, far):
    poll = select.poll()
    poll.register(epoll, select.POLLIN)
    print("polled", [e for _, e in poll.poll(5000)])


def selected(epoll, near, far):
    print("selected", [len(s) for s in select.select([epoll], [], [], 5)])


def copied(epoll, near, far):
    for copy in (os.dup(epoll.fileno()), os.dup2(epoll.fileno(), 100)):
        with select.epoll.fromfd(copy) as other:
            print("copied", [e for _, e in other.poll(5)])


def passed(epoll, near, far):
    left, right = socket.socketpair()
    socket.send_fds(left, [b"x"], [epoll.fileno()])
    (copy,) = socket.recv_fds(right, 1, 1)[1]
    with select.epoll.fromfd(copy) as other:
        print("passed", [e for _, e in other.poll(5)])


def inherited(epoll, near, far):
    sys.stdout.flush()
    child = os.fork()
    if not child:
        print("inherited", [e for _, e in epoll.poll(5)])
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(child, 0)


def inherited_and_left(epoll, near, far):
    sys.stdout.flush()
    child = os.fork()
    if not child:
        os.close(epoll.fileno())
        near.close()
        os._exit(0)
    os.waitpid(child, 0)
    print("left")


for how in (nested, polled, selected, copied, passed, inherited, inherited_and_left):
    shared(how)

# A duplicated socket stays in the instance until both descriptors are closed.
near, far = tcp_pair()
epoll = select.epoll()
epoll.register(near, select.EPOLLIN)
copy = os.dup(near.fileno())
near.close()
far.send(b"x")
print("by its copy", [e for _, e in epoll.poll(5)])
os.close(copy)
print("closed", epoll.poll(0.05))
