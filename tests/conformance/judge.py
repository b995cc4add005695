"""Judges an outcome of the suite: counts, misses, and the errors of a run. No I/O.

A test is a dictionary with `id`, `suite`, `name`, `kind` (required, optimal, check), `browser`
(only for caches of browsers), `verdict` and `detail`, as suite.mjs prints it. A test that was run
once more, with the options of its `opted_in` entry, also has `by_default`: the verdict of the first
run.
"""

OPTIMAL_SHARE_MIN = 0.95
# Surrogate-Control is a note of the W3C, not a part of HTTP caching, and the suite says itself that
# interoperability around it is not clear: its results are printed without a bar.
UNBARRED = {"surrogate-control"}
# A check shows how a cache behaves; neither result is wrong.
PASSED = {"pass", "yes"}
# Tests that a correct cache fails: no cache can pass them, or the RFC requires the opposite.
EXEMPT = ("unsatisfiable", "superseded")
LISTS = (*EXEMPT, "opted_in", "miss")


def exempt(known):
    """The names of the tests that no bar holds for because a correct cache does not pass them."""
    return {name for kind in EXEMPT for entry in known.get(kind, []) for name in entry["tests"]}


def asked(tests, known):
    """The tests that a bar holds for: those of shared caches whose outcome is right or wrong, and
    that a correct cache passes."""
    impossible = exempt(known)
    return [
        test for test in tests
        if test["kind"] != "check" and not test["browser"] and test["suite"] not in UNBARRED
        and test["id"] not in impossible
    ]


def share(tests):
    """The share of the tests that passed; a test that was not shown to pass did not."""
    return sum(test["verdict"] in PASSED for test in tests) / max(len(tests), 1)


def entries(known, kind, subject):
    """(test, entry) of each test listed under `kind` for this subject."""
    for entry in known.get(kind, []):
        if subject in entry.get("on", [subject]):
            yield from ((name, entry) for name in entry["tests"])


def option_sets(known, subject):
    """The names of the tests that run with more options, by these options."""
    sets = {}
    for name, entry in entries(known, "opted_in", subject):
        sets.setdefault(entry["options"], []).append(name)
    return sets


def adopt(tests, again, ids):
    """Gives the tests `ids` the outcome of their second run and keeps the first verdict."""
    outcomes = {test["id"]: test for test in again if test["id"] in ids}
    for test in tests:
        if outcome := outcomes.get(test["id"]):
            first = test["verdict"]
            test.update(verdict=outcome["verdict"], detail=outcome["detail"], by_default=first)


def by_default(tests):
    """The tests with the verdicts of the run with the default options."""
    return [dict(test, verdict=test.get("by_default", test["verdict"])) for test in tests]


def complaints(tests, known, subject):
    """Returns the errors of the outcome of `subject`, a sentence each; [] if it conforms.

    `known` has four lists, `miss`, `opted_in`, `unsatisfiable` and `superseded`, of dictionaries
    with `tests`, `section`, `reason` and, if they hold for some subjects only, `on`. Entries of
    `opted_in` also have `options`, and their tests must fail without these.
    """
    said = []
    by_id = {test["id"]: test for test in tests}
    barred = asked(tests, known)
    if not barred:
        return ["the suite ran no test"]
    may_be_missed = {test["id"] for test in barred}
    listed, excused = set(), set()
    for kind in LISTS:
        for name, entry in entries(known, kind, subject):
            if not entry.get("section") or not entry.get("reason"):
                said.append(f"{name} is listed without a section or a reason")
            if name in listed:
                said.append(f"{name} is listed twice")
            listed.add(name)
            if kind == "miss":
                excused.add(name)
            if name not in by_id or (kind not in EXEMPT and name not in may_be_missed):
                said.append(f"{name} is listed, and no test that a bar holds for has this name")
            elif kind == "opted_in":
                if by_id[name].get("by_default", "pass") in PASSED:
                    said.append(f"{name} is listed as opted_in and passes by default")
            elif by_id[name]["verdict"] in PASSED:
                said.append(f"{name} is listed as {kind} and passes")
    for kind, least in (("required", 1.0), ("optimal", OPTIMAL_SHARE_MIN)):
        of_kind = [test for test in barred if test["kind"] == kind]
        if share(of_kind) < least:
            said.append(f"{share(of_kind):.1%} of the {kind} tests pass, not {least:.0%}")
        for test in of_kind:
            if test["verdict"] not in PASSED and test["id"] not in excused:
                said.append(f"{test['id']} ({kind}) is missed and has no reason in known.toml")
    return said


def differences(tests, published, explained):
    """Where the verdicts of a product are not the published ones: (explained, complaints).

    `explained` are dictionaries with `tests`, `was`, `is` and `reason`; one that is not true is a
    complaint, except that where `varies` is set the published verdict may be seen too.
    """
    found = {
        test["id"]: (published[test["id"]], test["verdict"])
        for test in tests
        if published[test["id"]] not in (test["verdict"], "untested")
    }
    reasons, said = {}, []
    for entry in explained:
        for name in entry["tests"]:
            seen = found.get(name)
            if seen != (entry["was"], entry["is"]) and (seen or not entry.get("varies")):
                said.append(f"{name} is explained as {entry['was']}, now {entry['is']}: it is not")
            elif not entry.get("reason"):
                said.append(f"{name} is explained without a reason")
            reasons[name] = entry["reason"]
    for name, (was, now) in found.items():
        if name not in reasons:
            said.append(f"{name}: published {was}, here {now}, and nothing explains it")
    return {name: found[name] for name in found if name in reasons}, said


def table(tests, known):
    """Markdown: how many tests of each kind, and of those without a bar, ended how."""
    lines = ["| tests | passed | failed | not shown | of |", "| --- | --- | --- | --- | --- |"]
    shared = [test for test in tests if not test["browser"]]
    barred = asked(tests, known)
    groups = [(kind, [test for test in barred if test["kind"] == kind])
              for kind in ("required", "optimal")]
    if any("by_default" in test for test in tests):
        groups += [(f"{kind}, default options", by_default(group)) for kind, group in groups]
    groups += [("check (yes, no)", [test for test in shared if test["kind"] == "check"
                                    and test["suite"] not in UNBARRED])]
    groups += [(f"{suite}, no bar", [test for test in shared if test["suite"] == suite])
               for suite in sorted(UNBARRED)]
    for kind in EXEMPT:
        listed = {name for entry in known.get(kind, []) for name in entry["tests"]}
        groups += [(f"{kind}, no bar", [test for test in shared if test["id"] in listed])]
    for name, group in groups:
        passed = sum(test["verdict"] in PASSED for test in group)
        failed = sum(test["verdict"] in ("fail", "no") for test in group)
        rest = len(group) - passed - failed
        lines.append(f"| {name} | {passed} | {failed} | {rest} | {len(group)} |")
    return "\n".join(lines)


def names(tests, known, subject):
    """Markdown: every test by name under its verdict, misses with what was seen and why."""
    reasons = {
        name: f"{entry['section']}: {entry['reason']}"
        for kind in LISTS for name, entry in entries(known, kind, subject)
    }
    parts = []
    shared = [test for test in tests if not test["browser"]]
    for kind in ("required", "optimal", "check"):
        for verdict in dict.fromkeys(test["verdict"] for test in shared):
            group = [t for t in shared if t["kind"] == kind and t["verdict"] == verdict]
            if not group:
                continue
            parts.append(f"## {kind}: {verdict} ({len(group)})\n")
            for test in group:
                detail = f": {test['detail']}" if test["detail"] else ""
                reason = reasons.get(test["id"])
                first = f", {test['by_default']} by default" if "by_default" in test else ""
                told = f" ({reason})" if reason else ""
                parts.append(f"- `{test['id']}`{first}{detail}{told}")
            parts.append("")
    return "\n".join(parts)
