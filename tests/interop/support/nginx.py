"""nginx as an origin: the system's program with its own configuration in a scratch folder."""

import os
import shutil
import socket
import subprocess
import time

from .ports import free_port

CONFIGURATION = """
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log warn;
events {{ worker_connections 8192; }}
http {{
  types {{ text/html html; text/css css; text/javascript js; image/svg+xml svg;
           application/json json; }}
  default_type application/octet-stream;
  log_format seen '$request_method|$request_uri|$status|$http_via|$http_host|$connection'
                  '|$bytes_sent';
  access_log {folder}/access.log seen;
  sendfile on;
  keepalive_timeout 300s;
  keepalive_requests 1000000;
  send_timeout 300s;
  gzip_min_length 256;
  gzip_proxied any;
  gzip_types text/plain application/json;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxied;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  server {{
    listen {listen};
    {tls}
    root {root};
    location / {{ {location} }}
    {extra}
  }}
}}
"""


def executable():
    """Returns the path of nginx, which may be in a folder that is not in the PATH of ordinary
    users."""
    return shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


class Nginx:
    """An nginx that serves `root` on 127.0.0.1, over TLS if `certificate` (a pair of files) is
    given. `listen_more` has further parameters of the `listen` directive."""

    def __init__(
        self, folder, root, *, certificate=None, host="127.0.0.1", location="", extra="",
        listen_more="",
    ):
        self.folder = folder / f"nginx-{free_port()}"
        self.folder.mkdir()
        self.port = free_port(host)
        self.host = f"[{host}]" if ":" in host else host
        self.scheme = "https" if certificate else "http"
        tls = ""
        if certificate:
            tls = f"ssl_certificate {certificate[0]}; ssl_certificate_key {certificate[1]};"
        text = CONFIGURATION.format(
            folder=self.folder,
            root=root,
            # A bounded send buffer: a thousand stalled responses must not fill the kernel's memory.
            listen=f"{self.host}:{self.port} backlog=4096 sndbuf=256k" + " ssl" * bool(certificate)
            + f" {listen_more}",
            tls=tls,
            location=location,
            extra=extra,
        )
        if os.getuid() == 0:
            text = "user root;" + text
        configuration = self.folder / "nginx.conf"
        configuration.write_text(text)
        self.start()

    def start(self):
        """Starts nginx, also after `stop`, at the same address, and waits until it listens."""
        configuration = self.folder / "nginx.conf"
        with open(self.folder / "stderr", "wb") as stderr:
            self.process = subprocess.Popen(
                [executable(), "-p", self.folder, "-c", configuration]
                + ["-e", self.folder / "error.log"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
            )
        self._wait_until_it_listens(self.host.strip("[]"))

    def _wait_until_it_listens(self, host):
        for _ in range(600):
            if self.process.poll() is not None:
                break
            try:
                socket.create_connection((host, self.port), 5).close()
                return
            except OSError:
                time.sleep(0.05)
        raise RuntimeError(f"nginx does not listen: {(self.folder / 'stderr').read_text()}")

    @property
    def url(self):
        return f"{self.scheme}://{self.host}:{self.port}"

    def requests(self, count=0):
        """Returns the logged requests as dictionaries with method, target, status, via, host,
        connection and sent bytes. nginx logs a request after its response: waits, for a bounded
        time, until `count` requests are logged."""
        names = ("method", "target", "status", "via", "host", "connection", "sent")
        end = time.monotonic() + 30
        while True:
            lines = (self.folder / "access.log").read_text().splitlines()
            if len(lines) >= count or time.monotonic() > end:
                return [dict(zip(names, line.split("|"))) for line in lines]
            time.sleep(0.02)

    def stop(self):
        """Ends the master, which ends its worker."""
        self.process.terminate()
        self.process.wait(30)
