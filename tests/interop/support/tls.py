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
    "weak curve": ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:secp224r1"],
}


class Authority:
    """An authority in `folder`, whose certificate `issuer` has signed, or the authority itself.
    `path` is the file of its certificate."""

    def __init__(self, folder, name="authority", issuer=None):
        self.folder, self._number = folder, itertools.count(1)
        self.path, self._key = folder / f"{name}.pem", folder / f"{name}.key"
        signer = ["-CA", issuer.path, "-CAkey", issuer._key] if issuer else []
        openssl(
            *["req", "-x509", *KINDS["ecdsa"], "-nodes", "-subj", f"/CN=interop {name}"],
            *["-addext", "basicConstraints=critical,CA:TRUE", "-days", "3650", *signer],
            *["-keyout", self._key, "-out", self.path],
        )

    def revoke(self, *certificates, until=None):
        """Returns the file of a new list that revokes these certificates. It ends in 30 days, or at
        `until` (YYYYMMDDHHMMSSZ)."""
        stem = f"{self.path.stem}-{next(self._number)}"
        listed, settings = (self.folder / f"{stem}.{end}" for end in ("crl", "cnf"))
        for end in ("index", "index.attr"):
            (self.folder / f"{stem}.{end}").write_text("")
        (self.folder / f"{stem}.number").write_text("01")
        settings.write_text(
            f"[ca]\ndefault_ca = it\n[it]\ndatabase = {self.folder}/{stem}.index\n"
            f"default_md = sha256\ncrlnumber = {self.folder}/{stem}.number\n"
            "crl_extensions = ends\n[ends]\nauthorityKeyIdentifier = keyid\n"
        )
        signer = ["-config", settings, "-cert", self.path, "-keyfile", self._key]
        for certificate in certificates:
            openssl("ca", *signer, "-revoke", certificate)
        since = ["-crl_lastupdate", "20200101000000Z", "-crl_nextupdate", until]
        times = since if until else ["-crldays", "30"]
        openssl("ca", *signer, "-gencrl", *times, "-out", listed)
        return listed

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
