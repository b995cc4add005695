"""HTTP servers and proxies under the preload, with each of their methods of waiting."""

import shutil
import signal
import unittest

from preloaded import PreloadCase, free_port


class Lighttpd(PreloadCase):
    def serve(self, handler):
        port = free_port()
        configuration = self.folder / "lighttpd.conf"
        configuration.write_text(f"""
server.document-root = "{self.site}"
server.port = {port}
server.bind = "127.0.0.1"
server.event-handler = "{handler}"
server.max-keep-alive-requests = 100000
server.max-fds = 1000
server.feature-flags = ( "server.graceful-shutdown-timeout" => 5 )
""")
        lighttpd = self.preload(self.path_of("lighttpd"), "-D", "-f", configuration, port=port)
        self.request_files(port)
        lighttpd.end()

    def test_lighttpd_by_poll(self):
        self.serve("poll")

    def test_lighttpd_by_select(self):
        self.serve("select")

    def test_lighttpd_by_epoll(self):
        self.serve("linux-sysepoll")


class Haproxy(PreloadCase):
    def serve(self, *options):
        origin = self.nginx()
        # HAProxy 2.6 with threads crashes in about one of twenty stops, without the preload too.
        # Then its report is missing, and the test runs it again.
        for _ in range(5):
            haproxy = self.serve_once(origin, *options)
            if haproxy.stop() != -signal.SIGSEGV:
                break
        haproxy.assert_served_from_memory()

    def serve_once(self, origin, *options):
        port = free_port()
        configuration = self.folder / "haproxy.cfg"
        configuration.write_text(f"""
global
    maxconn 400
    nbthread 2
    hard-stop-after 5s
defaults
    mode http
    timeout connect 30s
    timeout client 60s
    timeout server 60s
listen it
    bind 127.0.0.1:{port}
    server origin 127.0.0.1:{origin.port}
""")
        command = (self.path_of("haproxy"), "-db", *options, "-f", configuration)
        haproxy = self.preload(*command, port=port, stop_signal=signal.SIGUSR1)
        self.request_files(port)
        return haproxy

    def test_haproxy_by_epoll(self):
        self.serve()

    def test_haproxy_by_poll(self):
        self.serve("-de")

    def test_haproxy_by_select(self):
        self.serve("-de", "-dp")


class Nginx(PreloadCase):
    def serve(self, master, workers, stop_signal):
        port, user = free_port(), "user root;"
        configuration = self.folder / "under.conf"
        configuration.write_text(f"""
daemon off; {master} {user} worker_processes {workers};
pid {self.folder}/under.pid;
error_log stderr warn;
events {{ worker_connections 1000; }}
http {{
  access_log off;
  keepalive_requests 100000;
  client_body_temp_path {self.folder}/body;
  proxy_temp_path {self.folder}/proxied;
  fastcgi_temp_path {self.folder}/fastcgi;
  uwsgi_temp_path {self.folder}/uwsgi;
  scgi_temp_path {self.folder}/scgi;
  server {{ listen 127.0.0.1:{port}; root {self.site}; }}
}}
""")
        command = (self.path_of("nginx"), "-p", self.folder, "-c", configuration, "-e", "stderr")
        nginx = self.preload(*command, port=port, stop_signal=stop_signal)
        self.request_files(port)
        nginx.end()

    def test_nginx_by_itself(self):
        self.serve("master_process off;", 1, signal.SIGQUIT)

    def test_nginx_with_workers(self):
        self.serve("", 2, signal.SIGQUIT)


class ForwardProxies(PreloadCase):
    def test_squid(self):
        origin, port = self.nginx(), free_port()
        configuration = self.folder / "squid.conf"
        configuration.write_text(f"""
http_port 127.0.0.1:{port}
http_access allow all
cache deny all
access_log none
cache_log {self.folder}/cache.log
pid_filename none
coredump_dir {self.folder}
shutdown_lifetime 1 second
memory_cache_shared off
cache_effective_user proxy
""")
        # Squid drops root privileges.
        shutil.chown(self.folder, "proxy")
        squid = self.preload(self.path_of("squid"), "-N", "-f", configuration, port=port)
        self.request_files(port, prefix=origin.url, rounds=8)
        squid.end()

    def test_tinyproxy(self):
        origin, port = self.nginx(), free_port()
        configuration = self.folder / "tinyproxy.conf"
        configuration.write_text(f"""
User root
Group root
Port {port}
Listen 127.0.0.1
Timeout 60
MaxClients 100
LogLevel Critical
""")
        tinyproxy = self.preload(self.path_of("tinyproxy"), "-d", "-c", configuration, port=port)
        # tinyproxy closes each connection after its response.
        for _ in range(3):
            self.request_files(port, prefix=origin.url, rounds=1)
        tinyproxy.end()


if __name__ == "__main__":
    unittest.main()
