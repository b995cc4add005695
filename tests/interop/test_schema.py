"""The JSON schema of configurations accepts and refuses the same files as `millrace check`."""

import json
import pathlib
import subprocess

from support import PROJECT, tls
from support.case import InteropCase
from support.millrace import program

VALIDATE = pathlib.Path(__file__).parent / "support" / "validate.py"

FULL = """
workers = "2"
memory = "64M"
cache-memory = "30%"
disk = ["/var/cache/millrace:1G", "/srv/a b:512m"]
access-log = "-"
log-format = "json"
admin = ["localhost:0", "tls://[::1]:0"]
admin-certificate = "{certificate}"
admin-key = "{key}"
limits = {{ head_ms = "10s", connections = 1000, request_head_bytes = "16K" }}

[[forward]]
listen = ["[::1]:0", "unix:/tmp/a b", "tls://localhost:0"]
certificate = ["{certificate}"]
key = "{key}"
ticket-key-file = ["{tickets}"]
fetch-https = true
fetch-ca = "{certificate}"
allow-client = ["10.0.0.0/8", "2001:db8::/32", "::1"]
deny-client = "10.1.0.0/16"
auth-file = "{users}"
auth-realm = "Our [proxy] (staff)"
allow-private = "on"
allow-port = [25, "587", "all"]
deny-port = [8081, "8082"]
allow-domain = ["*.example.org", "xn--bcher-kva.example", "a_b.test."]
deny-domain = "bad.example.org"
cache-heuristic = "0"
cache-target = false
cache-ignore-query = "*"

[boost]
cache-ttl = "default 10m"
cache-bypass = ["field:Authorization", "cookie:wordpress_logged_in_*"]
listen = ["127.0.0.1:0", "tls://127.0.0.1:4433"]
certificate = "{certificate}"
key = "{key}"
redirect-https = "on"
hsts = "365d"
trust = "0.0.0.0/0"
proxy-protocol = true
congestion = "system"
[[boost.route]]
host = "[::1]"
path = "/a/!~@[]"
origins = ["http://a.test:8000", "HTTP://[::1]/", "unix:/run/a", "https://a.test"]
origin-ca = "{certificate}"
send-proxy = "v2"
cache = "on"
cache-ttl = ["override 0", "404-410 default 10s"]
cache-ttl-max = "7d"
cache-stale-if-error = 0
cache-set-cookie = "shared"
cache-target = ["Millrace-Cache-Control", "CDN-Cache-Control"]
cache-key = "cookie:lang"
cache-ignore-query = ["utm_*", "q%5B%5D"]
cache-finish = true

[serve]
listen = "localhost:0"
folder = "{folder}"
index = []
listing = true
hide = ["*.key", "a b?"]
try-files = ["{{path}}", "{{path}}.html", "/no.html"]
fallback = "/app/index.html"
precompressed = "off"
media-type = [".glb=model/gltf-binary", ".txt=text/plain; charset=iso-8859-1"]
charset = false
program-extensions = [".php*", "*.x"]
file-cache-control = 'public, no-cache="a, b"'
allow-path = "{folder}"
file-check = 0
origins = "https://a.test"
[[serve.route]]
path = "/b/"
folder = "{folder}"
symlinks = "none"
charset = "iso-8859-1"
file-cache-control = "off"
"""

# Each of these has a wrong type, bound or name.
WRONG = [
    "workers = 0\n[[forward]]",
    "workers = 1025\n[[forward]]",
    "workers = 1.5\n[[forward]]",
    "workers = 'many'\n[[forward]]",
    "workers = [1]\n[[forward]]",
    "worker = 1\n[[forward]]",
    "memory = 1024\n[[forward]]",
    "memory = '1MB'\n[[forward]]",
    "engine = 'kqueue'\n[[forward]]",
    "log-format = 'xml'\n[[forward]]",
    "admin = 'example.org:80'\n[[forward]]",
    "access-log = 1.5\n[[forward]]",
    "no-cache = 'perhaps'\n[[forward]]",
    "cache-memory = '100%'\n[[forward]]",
    "cache-memory = 'half'\n[[forward]]",
    "disk = '/a'\n[[forward]]",
    "disk = 'a:1G'\n[[forward]]",
    "cache-ttl = 'origin'\n[[forward]]",
    "limits = 1\n[[forward]]",
    "[limits]\nheads_ms = 1\n[[forward]]",
    "[limits]\nhead_ms = 1\n[[forward]]",
    "[limits]\nhead_ms = '1 s'\n[[forward]]",
    "[limits]\nfields = -1\n[[forward]]",
    "[limits]\nfields = '8K'\n[[forward]]",
    "workers = 2",
    "forward = 1",
    "boost = [1]",
    "[[boost]]",
    "[[boost]]\nroute = []",
    "[[boost]]\n[[boost.route]]",
    "[[boost]]\n[[boost.route]]\norigins = 'ftp://a'",
    "[[boost]]\n[[boost.route]]\norigins = 'http://a/b'",
    "[[boost]]\n[[boost.route]]\norigins = 'http://u@a'",
    "[[boost]]\n[[boost.route]]\norigins = 'http://a'\nhosts = 'a'",
    "[[boost]]\n[[boost.route]]\norigins = 'http://a'\nhost = '*'",
    "[[boost]]\n[[boost.route]]\norigins = 'http://a'\npath = 'a'",
    "[[boost]]\n[[boost.route]]\norigins = 'http://a'\npath = '/a?b'",
    "[[boost]]\n[[boost.route]]\norigins = 'http://a'\nbalance = 'random'",
    "[[boost]]\n[[boost.route]]\norigins = 'http://a'\nsend-proxy = 'v3'",
    "[[serve]]",
    "[[serve]]\nlisting = true",
    "[[serve]]\nfolder = ''",
    "[[serve]]\nfolder = '/'\nindex = 'a/b'",
    "[[serve]]\nfolder = '/'\nhide = ''",
    "[[serve]]\nfolder = '/'\ntry-files = 'a.html'",
    "[[serve]]\nfolder = '/'\nfallback = 'a.html'",
    "[[serve]]\nfolder = '/'\nmedia-type = 'a/b'",
    "[[serve]]\nfolder = '/'\nmedia-type = '.a.b=c/d'",
    "[[serve]]\nfolder = '/'\nprogram-extensions = 'php'",
    "[[serve]]\nfolder = '/'\ncharset = 'a b'",
    "[[serve]]\nfolder = '/'\nfile-cache-control = true",
    "[[serve]]\nfolder = '/'\nsymlinks = 'all'",
    "[[serve]]\nfolder = '/'\nfile-check = '1ms'",
    "[[serve]]\nroute = []",
    "[[serve]]\n[[serve.route]]",
    "[[boost]]\nallow-port = 1\n[[boost.route]]\norigins = 'http://a'",
    "[[forward]]\nlisten = 'a'",
    "[[forward]]\nlisten = '127.0.0.1'",
    "[[forward]]\nlisten = 'tls://unix:/a'",
    "[[boost]]\nhsts = '1 year'\n[[boost.route]]\norigins = 'http://a'",
    "[[forward]]\nallow-client = 'anywhere'",
    "[[forward]]\nallow-client = ['10.0.0.0/x']",
    "[[forward]]\nallow-port = 0",
    "[[forward]]\nallow-port = 65536",
    "[[forward]]\ndeny-port = 'all'",
    "[[forward]]\nallow-domain = 'http://a'",
    "[[forward]]\nallow-domain = 'b\u00fccher.example'",
    "[[forward]]\nauth-realm = 'a\"b'",
    "[[forward]]\nauth-realm = ''",
    "[[forward]]\nallow-private = 1",
    "[[forward]]\ncongestion = 'a b'",
    "[[forward]]\ncache = 'yes'",
    "[[forward]]\ncache-ttl = '1h'",
    "[[forward]]\ncache-ttl = '600 origin'",
    "[[forward]]\ncache-ttl-max = 60",
    "[[forward]]\ncache-ttl-max = '60'",
    "[[forward]]\ncache-heuristic = 101",
    "[[forward]]\ncache-set-cookie = 'always'",
    "[[forward]]\ncache-target = 'a:b'",
    "[[forward]]\ncache-key = 'X-Device'",
    "[[forward]]\ncache-key = 'cookie:a=b'",
    "[[forward]]\ncache-ignore-query = 'a b'",
    "[[forward]]\nlimits = {}",
    "[[forward]]\nroute = []",
]


class Schema(InteropCase):
    def check(self, text):
        """Returns the output of `check`, or None if it refuses the file."""
        path = self.folder / "checked.toml"
        path.write_bytes(text)
        done = subprocess.run(
            [program(), "check", path], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            check=False, timeout=60,
        )
        return done.stdout.decode() if done.returncode == 0 else None

    def validate(self, documents):
        """Returns for each text None, or the reason why the schema refuses it."""
        schema = json.loads(self.run_client(program(), "reference", "schema").stdout)
        request = json.dumps({"schema": schema, "documents": documents}).encode()
        done = subprocess.run(
            ["/usr/bin/python3", VALIDATE], input=request, capture_output=True, check=False,
            timeout=120,
        )
        self.assertEqual(done.returncode, 0, done.stderr.decode()[-2000:])
        return dict(zip(documents, json.loads(done.stdout)))

    def test_accepted_files_and_their_output_are_valid(self):
        users = self.folder / "users"
        users.write_text("a:token:" + "0" * 64 + "\n")
        users.chmod(0o600)
        certificate, key = tls.certificate(self.folder)[1]
        tickets = self.folder / "tickets"
        tickets.write_bytes(b"k" * 48)
        tickets.chmod(0o600)
        full = FULL.format(
            users=users, certificate=certificate, key=key, tickets=tickets, folder=self.folder
        )
        # The folders of the examples.
        for path in ("www", "dokuwiki", "app/dist/assets"):
            (self.folder / path).mkdir(parents=True)
        examples = sorted((PROJECT / "examples").glob("*.toml"))
        corpus = sorted((PROJECT / "fuzz" / "corpus" / "configuration").iterdir())
        self.assertTrue(examples and corpus)
        documents = {}
        for name, text in [("full", full.encode())] + [
            (path.name, path.read_bytes().replace(b"/srv/", f"{self.folder}/".encode()))
            for path in examples + corpus
        ]:
            written = self.check(text)
            accepted = written is not None
            self.assertTrue(accepted or name not in ("full", *(one.name for one in examples)), name)
            if accepted:
                documents[text.decode().lstrip("\ufeff")] = name
                documents[written] = f"{name}, written"
        self.assertGreater(len(documents), 10)
        refused = {
            documents[text]: why for text, why in self.validate(list(documents)).items() if why
        }
        self.assertEqual(refused, {})

    def test_wrong_types_bounds_and_names_are_refused_by_both(self):
        self.assertEqual([text for text in WRONG if self.check(text.encode()) is not None], [])
        valid = [text for text, why in self.validate(WRONG).items() if why is None]
        self.assertEqual(valid, [])
