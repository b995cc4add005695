"""nginx, HAProxy, Squid, Varnish and millrace on 127.0.0.1, each before an origin, in their roles.
Each role has the least configuration that it needs; other settings are Debian's."""

import contextlib
import os
import pathlib
import re
import shutil
import socket
import subprocess
import tempfile
import time

from support import faulty
from support.millrace import Millrace
from support.ports import free_port

START_SECONDS_MAX = 60
STREAM = pathlib.Path("/usr/lib/nginx/modules/ngx_stream_module.so")
# Bytes of each program's cache.
CACHE_MB = 16
# Roles whose origins do not respond to an HTTP probe.
TUNNELS = ("connect", "relay", "upgrade")

NGINX = """daemon off; @user@ pid @run@/pid; error_log @run@/error.log;
events { }
http {
  access_log off; proxy_http_version 1.1;
  client_body_temp_path @run@/b; proxy_temp_path @run@/p;
  fastcgi_temp_path @run@/f; uwsgi_temp_path @run@/u; scgi_temp_path @run@/s;
  proxy_cache_path @run@/c keys_zone=c:1m max_size=@cache_mb@m;
  upstream two { server 127.0.0.1:@origin@; server 127.0.0.1:@other@; }
  server { listen 127.0.0.1:@port@; location / { @role@ } }
}
"""
NGINX_ROLES = {
    "plain": "proxy_pass http://127.0.0.1:@origin@;",
    "cache": "proxy_cache c; proxy_cache_revalidate on; proxy_pass http://127.0.0.1:@origin@;",
    "retry": "proxy_next_upstream error timeout invalid_header http_502 http_503 http_504;"
    " proxy_pass http://two;",
    "upgrade": "proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade;"
    " proxy_pass http://127.0.0.1:@origin@;",
}
NGINX_RELAY = f"""load_module {STREAM};
daemon off; @user@ pid @run@/pid; error_log @run@/error.log;
events {{ }}
stream {{ server {{ listen 127.0.0.1:@port@; proxy_pass 127.0.0.1:@origin@; }} }}
"""

HAPROXY = """defaults
  mode http
  timeout connect 5s
  timeout client 30s
  timeout server 30s
cache c
  total-max-size @cache_mb@
  max-object-size 8000000
listen p
  bind 127.0.0.1:@port@
  server o 127.0.0.1:@origin@
@role@
"""
HAPROXY_ROLES = {
    "plain": "",
    "cache": "  http-request cache-use c\n  http-response cache-store c",
    "retry": "  server p 127.0.0.1:@other@\n  option redispatch 1\n"
    "  retry-on conn-failure empty-response junk-response 502 503 504",
    "upgrade": "",
    "relay": "  mode tcp",
}

SQUID = """http_access allow all
access_log none
cache_log @run@/cache.log
pid_filename @run@/pid
coredump_dir none
netdb_filename none
pinger_enable off
icp_port 0
visible_hostname interop.test
shutdown_lifetime 1 second
@role@
"""
SQUID_ORIGIN = """http_port 127.0.0.1:@port@ accel defaultsite=interop.test no-vhost
never_direct allow all
cache_peer 127.0.0.1 parent @origin@ 0 no-query originserver round-robin name=o
"""
SQUID_ROLES = {
    "plain": SQUID_ORIGIN + "cache deny all",
    "cache": SQUID_ORIGIN + "cache_mem @cache_mb@ MB\nmaximum_object_size_in_memory 8 MB",
    "retry": SQUID_ORIGIN + "cache deny all\nretry_on_error on\n"
    "cache_peer 127.0.0.1 parent @other@ 0 no-query originserver round-robin name=p",
    "upgrade": SQUID_ORIGIN + "cache deny all\nhttp_upgrade_request_protocols OTHER allow all",
    "connect": "http_port 127.0.0.1:@port@",
}

VARNISH = """vcl 4.1;
import directors;
backend o { .host = "127.0.0.1"; .port = "@origin@"; }
@role@
"""
VARNISH_ROLES = {
    "plain": "sub vcl_recv { return (pass); }",
    "cache": "",
    "retry": """backend p { .host = "127.0.0.1"; .port = "@other@"; }
sub vcl_init { new two = directors.round_robin(); two.add_backend(o); two.add_backend(p); }
sub vcl_recv { return (pass); }
sub vcl_backend_fetch { set bereq.backend = two.backend(); }
sub vcl_backend_response {
  if (beresp.status >= 502 && beresp.status <= 504 && bereq.method != "POST") { return (retry); }
}
sub vcl_backend_error { if (bereq.method != "POST") { return (retry); } }""",
    "upgrade": """sub vcl_recv { return (pipe); }
sub vcl_pipe {
  set bereq.http.Upgrade = req.http.Upgrade;
  set bereq.http.Connection = req.http.Connection;
}""",
}


class Peer:
    """A peer: its name, program, version command, start command, and a configuration for each
    role."""

    def __init__(self, name, executable, version, command, texts):
        path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
        self.name, self.version, self.command, self.texts = name, version, command, texts
        self.executable = shutil.which(executable, path=path)

    def has(self, role):
        return role in self.texts

    @contextlib.contextmanager
    def started(self, role, origin, other=0):
        """Starts the peer before the origin at this port, for `retry` also before a second one.
        Yields its address."""
        port = free_port()
        user = "user root;" if os.getuid() == 0 else ""
        with tempfile.TemporaryDirectory(prefix="behaviour-") as run:
            os.chmod(run, 0o777)
            names = {"run": run, "port": port, "origin": origin, "other": other or origin,
                     "user": user, "cache_mb": CACHE_MB}

            def filled(text):
                return re.sub(r"@(\w+)@", lambda found: str(names[found[1]]), text)

            output = pathlib.Path(run, "output")
            pathlib.Path(run, "conf").write_text(filled(self.texts[role]))
            with open(output, "wb") as output:
                process = subprocess.Popen(
                    [self.executable, *map(filled, self.command)],
                    stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                )
            try:
                address = ("127.0.0.1", port)
                if not _listens(process, address, role):
                    raise RuntimeError(f"{self.name} does not start: {output.read_text()[-2000:]}")
                yield address
            finally:
                process.terminate()
                process.wait(60)

    def title(self):
        done = subprocess.run(
            [self.executable, self.version], capture_output=True, text=True, check=False
        )
        number = re.search(r"\d+\.\d+(\.\d+)?", done.stdout + done.stderr)
        return f"{self.name} {number[0]}"


def _listens(process, address, role):
    """Waits until a peer serves its role. Returns whether it does."""
    end = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < end and process.poll() is None:
        try:
            socket.create_connection(address, 5).close()
            # Squid listens before it has probed its origin.
            if role in TUNNELS or faulty.fetch(address, b"/").status == 200:
                return True
        except OSError:
            pass
        time.sleep(0.05)
    return False


class Ours:
    """millrace, in all its roles."""

    name = executable = "millrace"
    roles = {
        "plain": ["--no-cache"],
        "cache": ["--cache-memory", f"{CACHE_MB}M"],
        "retry": ["--retry-on", "malformed,502,503,504", "--no-cache"],
        "upgrade": [],
        "connect": [],
    }

    def has(self, role):
        return role in self.roles

    @contextlib.contextmanager
    def started(self, role, origin, other=0):
        """Starts the peer before the origin at this port, for `retry` also before a second one.
        Yields its address."""
        ports = {"connect": [], "retry": [origin, other]}.get(role, [origin])
        origins = [word for port in ports for word in ("--origin", f"http://127.0.0.1:{port}")]
        command = "boost" if origins else "forward"
        millrace = Millrace(command, *origins, "--listen", "127.0.0.1:0", *self.roles[role])
        try:
            yield millrace.address
        finally:
            millrace.stop()

    def title(self):
        return self.name


def _filled(text, roles):
    return {role: text.replace("@role@", lines) for role, lines in roles.items()}


ALL = [
    Ours(),
    Peer("nginx", "nginx", "-v", ["-p", "@run@", "-c", "@run@/conf", "-e", "@run@/error.log"],
         _filled(NGINX, NGINX_ROLES) | ({"relay": NGINX_RELAY} if STREAM.exists() else {})),
    Peer("HAProxy", "haproxy", "-v", ["-db", "-f", "@run@/conf"], _filled(HAPROXY, HAPROXY_ROLES)),
    Peer("Squid", "squid", "-v", ["-N", "-f", "@run@/conf"], _filled(SQUID, SQUID_ROLES)),
    Peer("Varnish", "varnishd", "-V",
         ["-F", "-n", "@run@/v", "-f", "@run@/conf", "-a", "127.0.0.1:@port@", "-j", "none",
          "-s", "malloc,@cache_mb@m", "-T", "none"], _filled(VARNISH, VARNISH_ROLES)),
]
