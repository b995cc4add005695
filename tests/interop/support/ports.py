"""TCP ports for programs that cannot report the port that the kernel chose."""

import os
import pathlib
import socket

LEAST = 10_000
_reservations = []


def free_port(host="127.0.0.1"):
    """Returns a free port of `host`, reserved until this process ends.

    The port is below the kernel's ephemeral range, so neither an outgoing connection nor a listener
    on port 0 takes it. An abstract Unix socket keeps other test processes from choosing it too.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    ephemeral = pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0]
    ports = range(LEAST, max(int(ephemeral), LEAST + 2_000))
    first = os.getpid() * 37 + len(_reservations)
    for offset in range(len(ports)):
        port = ports[(first + offset) % len(ports)]
        reservation = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            reservation.bind(f"\0millrace-test-port-{port}")
            with socket.socket(family) as probe:
                probe.bind((host, port))
        except OSError:
            reservation.close()
            continue
        _reservations.append(reservation)
        return port
    raise OSError(f"no free port from {ports.start} to {ports.stop - 1} on {host}")
