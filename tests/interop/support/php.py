"""A php-fpm on a Unix socket, which runs the scripts of a folder."""

import os
import pathlib
import shutil
import socket
import subprocess
import time

START_SECONDS_MAX = 30


def program():
    """Returns the path of php-fpm, whose name has a version in Debian; `None` if it is missing."""
    found = sorted(pathlib.Path("/usr/sbin").glob("php-fpm[0-9]*"))
    return str(found[-1]) if found else shutil.which("php-fpm")


class PhpFpm:
    """A running php-fpm. `address` is its address as millrace takes it. It loads `extensions` in
    this order."""

    def __init__(self, folder, children=4, extensions=()):
        self.path = folder / "php.sock"
        self.address = f"unix:{self.path}"
        user = "user = www-data\ngroup = www-data\nlisten.mode = 0666\n" if os.getuid() == 0 else ""
        config = folder / "php-fpm.conf"
        scratch = folder / "php"
        scratch.mkdir()
        scratch.chmod(0o777)
        config.write_text(
            f"[global]\nerror_log = {folder}/php.log\ndaemonize = no\n"
            f"[www]\nlisten = {self.path}\n{user}pm = static\npm.max_children = {children}\n"
            "catch_workers_output = yes\nphp_admin_value[display_errors] = 0\n"
            "php_admin_flag[log_errors] = on\n"
            f"php_admin_value[session.save_path] = {scratch}\n"
        )
        options = ["-n", "-y", config, "-d", f"sys_temp_dir={scratch}"]
        for extension in extensions:
            options += ["-d", f"extension={extension}"]
        self.process = subprocess.Popen(
            [program(), *map(str, options)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        end = time.monotonic() + START_SECONDS_MAX
        while not self._is_ready():
            if self.process.poll() is not None or time.monotonic() > end:
                self.stop()
                raise RuntimeError("php-fpm does not listen")
            time.sleep(0.02)

    def _is_ready(self):
        with socket.socket(socket.AF_UNIX) as client:
            return client.connect_ex(str(self.path)) == 0

    def stop(self):
        self.process.terminate()
        self.process.wait()
