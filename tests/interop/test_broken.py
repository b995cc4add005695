"""Origins that cut bodies, and tunnel targets that respond early: all bytes that the proxy received
reach the client. CASES is the number of attempts of each kind."""

import os
import ssl

from support import broken, tls
from support.case import InteropCase

CASES = int(os.environ.get("CASES", "40"))
SEED = os.environ.get("SEED", "1")


class CutBodies(InteropCase):
    def failures(self, version):
        """Tries bodies that are cut at random, by length, chunks and close; returns the errors."""
        draws = broken.draws(CASES, SEED)
        cuts = [broken.Cut.drawn(number, draw) for number, draw in enumerate(draws)]
        late = [draw.random() < 0.5 for draw in draws]
        origin = broken.CutOrigin(cuts)
        self.addCleanup(origin.stop)
        proxy = self.boost(origin.url)

        def fetch(number):
            return broken.fetch_cut(proxy.address, origin, cuts[number], late[number], version)

        return [failure for failure in broken.each(range(CASES), fetch) if failure]

    def test_received_bytes_reach_the_client_and_the_cut_is_visible(self):
        self.assertEqual(self.failures("1.1"), [])

    def test_a_client_without_chunks(self):
        self.assertEqual(self.failures("1.0"), [])


class EarlyResponses(InteropCase):
    programs = ("openssl",)

    def lost(self, address, opening, client_tls=None):
        return broken.lost_early(address, opening, CASES, client_tls)

    def target(self, **how):
        target = broken.EarlyTarget(**how)
        self.addCleanup(target.stop)
        return target

    def test_connect(self):
        target = self.target()
        proxy = self.forward()
        self.assertEqual(self.lost(proxy.address, broken.connect(target.port)), [])

    def test_connect_with_tls_inside(self):
        server, client = tls.contexts(self.folder)
        target = self.target(tls=server)
        proxy = self.forward()
        self.assertEqual(self.lost(proxy.address, broken.connect(target.port), client), [])

    def test_connect_with_an_alert_of_tls(self):
        """A target that requires a client certificate sends an alert if there is none."""
        server, client = tls.contexts(self.folder)
        server.verify_mode = ssl.CERT_REQUIRED
        target = self.target(tls=server)
        proxy = self.forward()
        opening = broken.connect(target.port)

        def upload(number):
            size = broken.UPLOADS[number % len(broken.UPLOADS)]
            return broken.upload_early(proxy.address, opening, size, client)[1]

        self.assertEqual(set(broken.each(range(CASES), upload)), {"SSLError"})

    def test_upgrade(self):
        target = self.target(upgrades=True)
        proxy = self.boost(target.url)
        self.assertEqual(self.lost(proxy.address, broken.UPGRADE), [])

    def test_upgrade_with_tls_inside(self):
        server, client = tls.contexts(self.folder)
        target = self.target(upgrades=True, tls=server)
        proxy = self.boost(target.url)
        self.assertEqual(self.lost(proxy.address, broken.UPGRADE, client), [])
