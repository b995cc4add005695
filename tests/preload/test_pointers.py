"""Bad pointers: each call of pointers.py has the same result with and without the preload, except
for the differences that uselect(1) lists under LIMITS. An unlisted difference fails the test, and
so does a listed one that no longer exists."""

import concurrent.futures
import pathlib
import subprocess
import sys
import unittest

from preloaded import BACKEND, LINE, PROGRAMS, SECONDS_MAX, PreloadCase

# Processes that make the calls, each with its own daemon. Between the end of a process and the next
# registration a daemon needs a tenth of a second, most of which it waits for the kernel.
LANES = 4
SCRIPT = pathlib.Path(__file__).resolve().parent / "pointers.py"

WAITED_FOR = ("ready", "idle", "pipe")
TRACKED = ("ready", "idle")
# Cases that end by SIGSEGV only with the preload: calls, arguments, what happened to memory that an
# earlier call used, and the state of the descriptors.
DOCUMENTED = [
    ("poll __poll_chk ppoll __ppoll_chk", "fds", "unmapped-since", WAITED_FOR),
    ("poll __poll_chk ppoll __ppoll_chk", "fds", "read-only-since", TRACKED),
    ("select pselect", "read write except", "unmapped-since read-only-since", WAITED_FOR),
    ("ppoll __ppoll_chk pselect epoll_pwait epoll_pwait2", "mask", "unmapped-since", WAITED_FOR),
    ("epoll_pwait2", "timeout", "unmapped-since", WAITED_FOR),
    (
        "epoll_wait epoll_wait-long epoll_pwait epoll_pwait2",
        "events",
        "unmapped-since read-only-since",
        ("ready",),
    ),
    ("epoll_ctl-add epoll_ctl-mod", "event", "unmapped-since", WAITED_FOR),
    ("sendmsg-unix", "message control", "unmapped-since", ("",)),
    ("sendmsg-short-header sendmsg-long-header", "control", "unmapped-since", ("",)),
]


def documented():
    return {
        f"{call} {argument} {kind} {state}".strip()
        for calls, arguments, kinds, states in DOCUMENTED
        for call in calls.split()
        for argument in arguments.split()
        for kind in kinds.split()
        for state in states
    }


class Pointers(PreloadCase):
    def test_outcomes_are_those_without_the_preload(self):
        plain, _ = self.outcomes([[]] * LANES)
        daemons = [self._daemon(f"{lane}.sock") for lane in range(LANES)]
        run = [PROGRAMS / "uselect", "run", "--stats"]
        loaded, stderr = self.outcomes([[*run, *options, "--"] for options in daemons])
        lines = LINE.findall(stderr)
        self.assertTrue(any(line[4] == f"backend {BACKEND}" for line in lines), stderr)
        self.assertEqual(plain.keys(), loaded.keys())
        # pointers.py itself must not have failed.
        self.assertEqual([case for case in plain.items() if "Error" in case[1]], [])
        differ = {case for case in plain if plain[case] != loaded[case]}
        print(f"{len(plain)} calls, {len(differ)} differ, {len(documented())} are documented")
        new = {case: (plain[case], loaded[case]) for case in sorted(differ - documented())}
        self.assertEqual(new, {}, "differences that uselect(1) does not list")
        outdated = sorted(documented() - differ)
        self.assertEqual(outdated, [], "differences that uselect(1) lists and that do not exist")
        results = {loaded[case] for case in differ}
        self.assertEqual(results, {"SIGSEGV"})

    def outcomes(self, preloads):
        def share(lane):
            done = subprocess.run(
                [*preloads[lane], sys.executable, SCRIPT, f"{lane}/{LANES}"],
                capture_output=True, text=True, timeout=SECONDS_MAX, stdin=subprocess.DEVNULL,
            )
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            return done.stdout, done.stderr

        with concurrent.futures.ThreadPoolExecutor(LANES) as pool:
            printed, stderr = zip(*pool.map(share, range(LANES)))
        return dict(line.split("\t") for line in "".join(printed).splitlines()), "".join(stderr)


if __name__ == "__main__":
    unittest.main()
