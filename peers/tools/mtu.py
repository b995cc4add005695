"""The projection of "IO-Lite: A Unified I/O Buffering and Caching System" to networks with a larger
MTU: how many bytes a server sends by one core of CPU time.

Server and client are in two network namespaces, which veth(4) joins, and on two cores. Each core
also handles the packets that its side receives (RPS), so that core 0 does the work of a server, and
core 1 that of the other machines. Segmentation offload hides the MTU: then a packet of up to 64 KB
crosses the link at once. So it is off for one half of the rows. Linux forms long packets inside TCP
even then, so a packet may have one segment only (gso_max_segs).

The CPU time of a response is that of the server, of softirqs on top of it or of an idle core 0, and
of the thread for softirqs there: all that core 0 does without other programs.

Needs root, Linux 6.3, and the cpuacct controller. The namespaces end with this program.
"""
import contextlib
import os
import pathlib
import textwrap
from dataclasses import dataclass

from namespaces import Namespace, inside, ip, set_offload
from page import read
from plot import Axis, Curve, HEIGHT, Panel, WIDTH, svg
from results import interval, read as read_windows, table, version
from runner import plan, settings
from runner.process import task_seconds

NAME = "io-lite-mtu"
PAGE = "mtu"
FIGURES = {NAME: "Files by MTU: bytes that one core sends"}
MODE = "closed-loop-2cores"
MTUS = (1500, 4352, 9180)  # of Ethernet, FDDI, and IP over ATM
SIZES = ("64k", "200k")
COLOURS = {"millrace": "#0072b2", "millrace-copy": "#555555", "nginx": "#009e73",
           "nginx-nosendfile": "#d55e00"}
OFFLOADS = {"off": "", "on": "6 4"}  # and the dash of a curve
# The ratios of the table, and the paper's words about that of the server with IO-Lite to the one
# without.
RATIOS = (("millrace", "millrace-copy", "increases significantly with the MTU"),
          ("millrace", "nginx-nosendfile", "increases significantly with the MTU"),
          ("millrace", "nginx", "-"))
COLUMNS = ("offload", "mtu", "bytes", "program", "round", "server_us", "core_us", "noisy")
SECONDS_MIN = 1.0  # of a window: the idle time of a core has ticks of 10 ms
# The cores of RPS for each new interface of a namespace.
RPS_MASK = pathlib.Path("/proc/sys/net/core/rps_default_mask")
CLIENT_ADDRESS, SERVER_ADDRESS = "192.0.2.1", "192.0.2.2"


@dataclass(frozen=True)
class Link:
    """How packets pass between the two namespaces."""

    mtu: int
    offload: str


def check_machine():
    """Exits if something is missing here."""
    needs = {"root": os.geteuid() == 0, "Linux 6.3": RPS_MASK.exists(),
             "the cpuacct controller of cgroup v1": task_seconds(), "two cores": os.cpu_count() > 1}
    for need, is_there in needs.items():
        if not is_there:
            raise SystemExit(f"figure: {NAME} needs {need}")


def settle(interface, address, link):
    """Configures an interface of this thread's namespace."""
    if link.offload == "off":
        ip(f"link set {interface} gso_max_segs 1")
        for feature in ("tso", "gso", "gro"):
            set_offload(interface, feature, False)
    ip(f"address add {address}/24 dev {interface}")
    ip(f"link set {interface} up")
    ip("link set lo up")


@contextlib.contextmanager
def joined(link):
    """Makes both namespaces. Moves this thread to the server's, and returns the client's file."""
    with contextlib.ExitStack() as at_end:
        client, server = Namespace(), Namespace()
        at_end.callback(client.close)
        at_end.callback(server.close)
        for namespace, cores in ((client, "2"), (server, "1")):
            with inside(namespace.path):
                RPS_MASK.write_text(cores)
        with inside(client.path):
            ip(f"link add veth0 mtu {link.mtu} type veth "
               f"peer name veth0 mtu {link.mtu} netns {server.pid}")
            settle("veth0", CLIENT_ADDRESS, link)
        at_end.enter_context(inside(server.path))
        settle("veth0", SERVER_ADDRESS, link)
        yield client.path


def measure(sizes, arguments):
    """Makes every window of the figure. Returns the rows, and the notes for the page."""
    check_machine()
    sizes = [size for size in SIZES if not sizes or settings.SIZES[size] in sizes]
    programs = arguments.programs.split(",") if arguments.programs else list(COLOURS)
    if not sizes or not set(programs) <= set(COLOURS):
        raise SystemExit("figure: the options select no point")
    rows = []
    for link in (Link(mtu, offload) for offload in OFFLOADS for mtu in MTUS):
        print(f"MTU {link.mtu}, offload {link.offload}", flush=True)
        rows += measure_link(link, sizes, programs, arguments)
    others = (f"{peer} {version(peer)}" for peer in programs if peer == "nginx")
    return rows, {"peers": ", ".join(others) or "none"}


def measure_link(link, sizes, programs, arguments):
    """Makes the windows over one link. Returns the rows."""
    path = f"{settings.WORK}/{NAME}.jsonl"
    with contextlib.suppress(FileNotFoundError):
        os.remove(path)
    cases = {f"static-file-{size}": settings.SIZES[size] for size in sizes}
    with joined(link) as client:
        options = settings.Options(reps=arguments.reps, secs=max(SECONDS_MIN, arguments.secs),
                                   client_network=client, peer_address=SERVER_ADDRESS)
        entries = plan.parse(",".join(cases), programs, [MODE])
        if plan.execute(entries, programs, options, path):
            raise SystemExit(f"figure: a case failed, and says above why; see {path}")
    return [{"offload": link.offload, "mtu": link.mtu, "bytes": cases[case], "program": program,
             "round": number, "server_us": f"{row['proxy_us']:.4f}",
             "core_us": f"{row['core_us']:.4f}", "noisy": int(row["noisy"])}
            for (case, _), found in read_windows(path)[0].items()
            for program, rounds in found.items() for number, row in rounds.items()]


def bandwidths(rows):
    """Returns {(offload, bytes, program): {mtu: Gbit/s of one core, in each round}}."""
    found = {}
    for row in rows:
        mtus = found.setdefault((row["offload"], row["bytes"], row["program"]), {})
        mtus.setdefault(row["mtu"], {})[row["round"]] = row["bytes"] * 8 / row["core_us"] / 1000
    return found


def picture(rows):
    """Returns the SVG: a panel for each size of the file."""
    found, panels = bandwidths(rows), []
    for bytes_ in sorted({row["bytes"] for row in rows}):
        curves = [Curve(f"{program}, offload {offload}", COLOURS[program], OFFLOADS[offload],
                        [(mtu, *interval(list(values.values())))
                         for mtu, values in sorted(mtus.items())])
                  for (offload, size, program), mtus in found.items() if size == bytes_]
        x = Axis("MTU in bytes", False, WIDTH).fit(MTUS)
        x.labels = [(mtu, str(mtu)) for mtu in MTUS]
        ys = [y + half for curve in curves for _, y, half in curve.points]
        panels.append(Panel(f"file of {bytes_ // 1024} KB", x,
                            Axis("Gbit/s by one core", False, HEIGHT).fit(ys), curves))
    return svg(f"{FIGURES[NAME]}; mean and 90 % confidence interval", panels)


def cell(values):
    middle, half = interval(values)
    return f"{middle:.2f}" + f" ± {half:.2f}" * (len(values) > 1)


def lines_of(rows):
    """Returns the table: bandwidths, ratios of those within a round, and the paper's words."""
    found = bandwidths(rows)
    lines = [["offload", "file", "Gbit/s by one core", *(f"MTU {mtu}" for mtu in MTUS), "paper"]]
    for (offload, bytes_, program), mtus in found.items():
        lines.append([offload, label(bytes_), program,
                      *(cell(list(mtus[mtu].values())) for mtu in MTUS), "-"])
    for offload, bytes_ in dict.fromkeys(key[:2] for key in found):
        for own, other, words in RATIOS:
            pair = [found.get((offload, bytes_, program)) for program in (own, other)]
            if all(pair):
                beside = ([pair[0][mtu][key] / pair[1][mtu][key] for key in pair[0][mtu]
                           if key in pair[1][mtu]] for mtu in MTUS)
                lines.append([offload, label(bytes_), f"{own} / {other}", *map(cell, beside),
                              words if offload == "off" else "-"])
        own = found.get((offload, bytes_, "millrace"))
        if own:
            by_mtu = [interval(list(own[mtu].values()))[0] for mtu in MTUS]
            lines.append([offload, label(bytes_), f"millrace / at MTU {MTUS[0]}",
                          *(f"{value / by_mtu[0]:.2f}" for value in by_mtu),
                          "FDDI: a third of the segments" if offload == "off" else "-"])
    return lines


def label(bytes_):
    return f"{bytes_ // 1024}K"


def section(notes, rows):
    """Returns the text of the figure for the page."""
    about = (f"{len({row['round'] for row in rows})} rounds, mean ± half of the 90 % confidence "
             f"interval; ratios are those within a round; of {len(rows)} windows, other programs "
             f"used a core in {sum(row['noisy'] for row in rows)}. {notes['system']}; millrace "
             f"at {notes['commit']}; {notes['peers']}. Command: `{notes['command']}`.")
    about = textwrap.fill(about, 100, break_long_words=False, break_on_hyphens=False)
    return f"### {NAME}: {FIGURES[NAME]}\n\n{about}\n\n{table(lines_of(rows))}\n"


def write(folder):
    """Draws the figure from its CSV in the folder and returns its section."""
    notes, rows = read(f"{folder}/{NAME}.csv")
    with open(f"{folder}/{NAME}.svg", "w") as file:
        file.write(picture(rows))
    return section(notes, rows)
