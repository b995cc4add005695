"""A certificate authority for one test, created by openssl."""

import ssl
import subprocess


def certificate(folder):
    """Creates an authority, and a certificate for 127.0.0.1 and localhost. Returns the files
    (authority, (certificate, key))."""
    authority, authority_key = folder / "authority.pem", folder / "authority.key"
    request, signed, key = folder / "site.csr", folder / "site.pem", folder / "site.key"
    names = folder / "names"
    names.write_text("subjectAltName = IP:127.0.0.1, DNS:localhost\nbasicConstraints = CA:FALSE\n")
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    openssl(
        *["req", "-x509", *curve, "-subj", "/CN=interop authority", "-days", "2"],
        *["-addext", "basicConstraints=critical,CA:TRUE"],
        *["-keyout", authority_key, "-out", authority],
    )
    openssl("req", *curve, "-subj", "/CN=127.0.0.1", "-keyout", key, "-out", request)
    openssl(
        *["x509", "-req", "-in", request, "-CA", authority, "-CAkey", authority_key],
        *["-CAcreateserial", "-days", "2", "-extfile", names, "-out", signed],
    )
    return authority, (signed, key)


def contexts(folder):
    """Returns the TLS contexts of a server with such a certificate and of a client that trusts
    it."""
    authority, pair = certificate(folder)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(*pair)
    return server, ssl.create_default_context(cafile=authority)


def openssl(*arguments):
    """Runs openssl. Its output is shown if it fails."""
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)
