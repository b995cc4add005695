"""Certificate authorities for tests, created by openssl."""

import base64
import hashlib
import itertools
import ssl
import subprocess

KINDS = {
    "ecdsa": ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"],
    "rsa": ["-newkey", "rsa:2048"],
    "weak": ["-newkey", "rsa:1024"],
}


class Authority:
    """An authority in `folder`. `path` is the file of its certificate."""

    def __init__(self, folder, name="authority"):
        self.folder, self._number = folder, itertools.count(1)
        self.path, self._key = folder / f"{name}.pem", folder / f"{name}.key"
        openssl(
            *["req", "-x509", *KINDS["ecdsa"], "-nodes", "-subj", f"/CN=interop {name}"],
            *["-addext", "basicConstraints=critical,CA:TRUE", "-days", "3650"],
            *["-keyout", self._key, "-out", self.path],
        )

    def issue(self, *names, kind="ecdsa", since=None, until=None, days=90):
        """Issues a certificate for names (`DNS:...`, `IP:...`). It is valid for `days` from now, or
        from `since` to `until` (YYYYMMDDHHMMSSZ). Returns the files (certificate, key)."""
        number = next(self._number)
        stem = self.path.with_suffix("").name
        signed, key = (self.folder / f"{stem}-{number}.{end}" for end in ("pem", "key"))
        request, settings = (self.folder / f"{stem}-{number}.{end}" for end in ("csr", "cnf"))
        for file in ("index", "index.attr"):
            (self.folder / f"{stem}-{number}.{file}").write_text("")
        settings.write_text(
            "[ca]\ndefault_ca = it\n[it]\nrand_serial = yes\ndefault_md = sha256\n"
            f"policy = names\ndatabase = {self.folder}/{stem}-{number}.index\n"
            f"new_certs_dir = {self.folder}\nx509_extensions = site\n"
            "[names]\ncommonName = supplied\n"
            f"[site]\nsubjectAltName = {', '.join(names)}\nbasicConstraints = CA:FALSE\n"
        )
        openssl(
            *["req", *KINDS[kind], "-nodes", "-subj", f"/CN={names[0].partition(':')[2]}"],
            *["-keyout", key, "-out", request],
        )
        times = ["-startdate", since, "-enddate", until] if since else ["-days", str(days)]
        openssl(
            *["ca", "-batch", "-notext", "-config", settings, "-in", request, "-out", signed],
            *["-cert", self.path, "-keyfile", self._key, *times],
        )
        return signed, key


def key_digest(path):
    """Returns the SHA-256 of the public key (SubjectPublicKeyInfo) of a certificate, in base64."""
    lines = openssl("x509", "-in", path, "-noout", "-pubkey").decode().split("\n")
    key = base64.b64decode("".join(lines[1:-2]))
    return base64.b64encode(hashlib.sha256(key).digest()).decode()


def certificate(folder):
    """Creates an authority, and a certificate for 127.0.0.1 and localhost. Returns the files
    (authority, (certificate, key))."""
    authority = Authority(folder)
    return authority.path, authority.issue("IP:127.0.0.1", "DNS:localhost")


def contexts(folder):
    """Returns the TLS contexts of a server with such a certificate and of a client that trusts
    it."""
    authority, pair = certificate(folder)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(*pair)
    return server, ssl.create_default_context(cafile=authority)


def openssl(*arguments):
    """Runs openssl and returns its output, which is shown if it fails."""
    done = subprocess.run(["openssl", *map(str, arguments)], capture_output=True)
    if done.returncode:
        raise RuntimeError(f"openssl {arguments[0]} failed: {done.stderr.decode()}")
    return done.stdout
