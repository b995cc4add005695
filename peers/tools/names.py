"""The plain names of cases, modes and figures, and the short codes that they had before.

Commands accept both. Result lines, tables and pages have the plain names. The codes in older result
files are replaced when the files are read."""

# Cases whose names do not follow from their family.
CASES = {
    "R3-miss": "many-connections-miss",
    "R5-1": "uncacheable-one-url",
    "R5-64": "uncacheable-64-urls",
    "C1": "reverse-hit-8k-new-connection",
    "F1-miss": "forward-miss-8k",
    "F1-hit": "forward-hit-8k",
    "F1-hitsurge": "forward-hit-surge",
    "F1-missclose": "forward-miss-8k-new-connection",
    "T1-h1": "tls-8k",
    "T1-h2": "tls-h2-8k",
    "T1-hs": "tls-handshake-8k",
}
# The part of a case before its size. In the results of R3, a rate follows it.
FAMILIES = {
    "R1": "reverse-miss",
    "R2": "reverse-hit",
    "R3": "many-connections-hit",
    "R4": "static-file",
    "R6": "reverse-store",
    "F2": "tunnel",
}
# Appended to a case.
VARIANTS = {"browser": "browser", "urls": "unique-urls"}
MODES = {
    "sat1": "closed-loop-1core",
    "sat2": "closed-loop-2cores",
    "rate1": "fixed-rate-1core",
    "rate2": "fixed-rate-2cores",
    "wide": "closed-loop-unpinned",
}
# "kernel-support" is "Kernel Support for Faster Web Proxies", "tcp-splice" is "An Evaluation of
# TCP Splice Benefits in Web Proxy Servers".
FIGURES = {
    "000.4": "kernel-support-fig4",
    "000.5": "kernel-support-fig5",
    "000.7": "kernel-support-fig7",
    "000.8": "kernel-support-fig8",
    "000.9": "kernel-support-fig9",
    "000.10": "kernel-support-fig10",
    "004.cpu": "tcp-splice-cpu",
    "004.time": "tcp-splice-time",
}
# The services of a peer, in the line `# cases:` of its start script.
SERVICES = {
    "R1": "reverse-miss",
    "R2": "reverse-hit",
    "R3": "many-connections",
    "R4": "static-file",
    "R5": "uncacheable",
    "C1": "new-connection",
    "F1": "forward",
    "F1close": "forward-close",
    "F2": "tunnel",
    "F2tcp": "tcp-relay",
    "T1": "tls",
}


def case(name):
    """Returns the plain name of a case, for instance of R1-8k-browser or of itself."""
    parts, variants = name.split("-"), []
    while parts[-1] in VARIANTS:
        variants.insert(0, VARIANTS[parts.pop()])
    code = "-".join(parts)
    if code in CASES:
        return "-".join([CASES[code], *variants])
    if parts[0] in FAMILIES:
        return "-".join([FAMILIES[parts[0]], *parts[1:], *variants])
    return name


def mode(name):
    """Returns the plain name of a mode."""
    return MODES.get(name, name)


def figure(name):
    """Returns the plain name of a figure."""
    return FIGURES.get(name, name)


def service(name):
    """Returns the plain name of a service."""
    return SERVICES.get(name, name)


def old_figure(name):
    """Returns the code that a figure had before, or None."""
    return next((code for code, plain in FIGURES.items() if plain == name), None)


def main():
    """Prints each argument, CASE[/MODE+MODE][@PEER+PEER], with plain names, one a line."""
    import sys

    for argument in sys.argv[1:]:
        head, at, peers = argument.partition("@")
        name, slash, modes = head.partition("/")
        print(case(name) + slash + "+".join(map(mode, modes.split("+"))) + at + peers)


if __name__ == "__main__":
    main()
