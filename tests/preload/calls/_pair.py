"""Helpers of the scripts."""

import errno
import socket


def tcp_pair():
    """Returns the two ends of a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    return near, far


def failure(call, *arguments):
    """Returns the result of a call, or the name of its error."""
    try:
        return call(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]
    except ValueError as error:
        return str(error)
