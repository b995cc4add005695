"""A MariaDB server with an empty database, in a scratch folder and without a port."""

import os
import shutil
import subprocess
import time

START_SECONDS_MAX = 120
PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


class MariaDb:
    """A running server. `user` has all privileges for the database `name`, and no password."""

    name = user = "interop"

    def __init__(self, folder):
        self.folder, self.path = folder / "mariadb", folder / "mariadb.sock"
        options = ["--no-defaults", f"--datadir={self.folder}"]
        # As root it runs only with this option.
        options += ["--user=root"] if os.getuid() == 0 else []
        self._run(
            "mariadb-install-db", *options, "--skip-test-db",
            "--auth-root-authentication-method=normal",
        )
        with open(folder / "mariadb.log", "wb") as log:
            self.process = subprocess.Popen(
                [shutil.which("mariadbd", path=PATH), *options, "--skip-networking",
                 f"--socket={self.path}", f"--pid-file={self.folder}/pid",
                 f"--tmpdir={self.folder}", "--innodb-flush-log-at-trx-commit=0"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )
        try:
            self._wait(folder)
            self._query(f"CREATE DATABASE {self.name}")
            self._query(f"CREATE USER {self.user}@localhost")
            self._query(f"GRANT ALL ON {self.name}.* TO {self.user}@localhost")
        except BaseException:
            self.stop()
            raise

    def _wait(self, folder):
        end = time.monotonic() + START_SECONDS_MAX
        while not self.path.exists():
            if self.process.poll() is not None or time.monotonic() > end:
                log = (folder / "mariadb.log").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"mariadbd does not listen: {log}")
            time.sleep(0.02)

    def _run(self, *command):
        done = subprocess.run(
            list(map(str, command)), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, env={**os.environ, "PATH": PATH},
        )
        if done.returncode:
            output = done.stdout.decode(errors="replace")[-2000:]
            raise RuntimeError(f"{command[0]} failed: {output}")

    def _query(self, statement):
        options = ["--no-defaults", f"--socket={self.path}", "--user=root"]
        self._run("mariadb", *options, "-e", statement)

    def stop(self):
        self.process.terminate()
        self.process.wait()
