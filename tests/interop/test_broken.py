"""Origins that break off, and targets that respond early: whatever the proxy received of them
reaches the client. CASES is how many of each kind are tried."""

import concurrent.futures
import os
import ssl

from support import broken, tls
from support.case import InteropCase

CASES = int(os.environ.get("CASES", "40"))
SEED = os.environ.get("SEED", "1")
AT_ONCE = 8
UPLOADS = (2_000, 60_000, 400_000)


def each(items, function):
    """The results of `function` for each item, a few at a time."""
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(function, items))


class CutBodies(InteropCase):
    def failures(self, version):
        """What goes wrong with bodies that are cut at random, by length, chunks and close."""
        draws = broken.draws(CASES, SEED)
        cuts = [broken.Cut.drawn(number, draw) for number, draw in enumerate(draws)]
        late = [draw.random() < 0.5 for draw in draws]
        origin = broken.CutOrigin(cuts)
        self.addCleanup(origin.stop)
        proxy = self.boost(origin.url)

        def fetch(number):
            return broken.fetch_cut(proxy.address, origin, cuts[number], late[number], version)

        return [failure for failure in each(range(CASES), fetch) if failure]

    def test_what_was_received_reaches_the_client_and_the_cut_is_visible(self):
        self.assertEqual(self.failures("1.1"), [])

    def test_a_client_without_chunks(self):
        self.assertEqual(self.failures("1.0"), [])


class EarlyResponses(InteropCase):
    programs = ("openssl",)

    def lost(self, address, opening, client_tls=None):
        """How often the early response did not arrive, and what came instead."""

        def upload(number):
            size, waits = UPLOADS[number % len(UPLOADS)], number % 2 == 0
            got, how = broken.upload_early(address, opening, size, client_tls, waits)
            return None if got == broken.EARLY else f"{size}: {len(got)} bytes, {how}"

        return [lost for lost in each(range(CASES), upload) if lost]

    def contexts(self, **asked):
        authority, pair = tls.certificate(self.folder)
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(*pair)
        return server, ssl.create_default_context(cafile=authority)

    def target(self, **how):
        target = broken.EarlyTarget(**how)
        self.addCleanup(target.stop)
        return target

    def test_connect(self):
        target = self.target()
        proxy = self.forward()
        self.assertEqual(self.lost(proxy.address, broken.connect(target.address[1])), [])

    def test_connect_with_tls_inside(self):
        server, client = self.contexts()
        target = self.target(tls=server)
        proxy = self.forward()
        self.assertEqual(self.lost(proxy.address, broken.connect(target.address[1]), client), [])

    def test_connect_with_an_alert_of_tls(self):
        """A target that asks for a certificate says that there is none by an alert."""
        server, client = self.contexts()
        server.verify_mode = ssl.CERT_REQUIRED
        target = self.target(tls=server)
        proxy = self.forward()
        opening = broken.connect(target.address[1])

        def upload(number):
            size = UPLOADS[number % len(UPLOADS)]
            return broken.upload_early(proxy.address, opening, size, client)[1]

        self.assertEqual(set(each(range(CASES), upload)), {"SSLError"})

    def test_upgrade(self):
        target = self.target(upgrades=True)
        proxy = self.boost(target.url)
        self.assertEqual(self.lost(proxy.address, broken.UPGRADE), [])

    def test_upgrade_with_tls_inside(self):
        server, client = self.contexts()
        target = self.target(upgrades=True, tls=server)
        proxy = self.boost(target.url)
        self.assertEqual(self.lost(proxy.address, broken.UPGRADE, client), [])
