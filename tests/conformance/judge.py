"""Judges an outcome of the suite: counts, misses, and the errors of a run. No I/O.

A test is a dictionary with `id`, `suite`, `name`, `kind` (required, optimal, check), `browser`
(only for caches of browsers), `verdict` and `detail`, as suite.mjs prints it. A test that was run
once more, with the options of its `opted_in` entry, also has `by_default`: the verdict of the first
run.
"""

OPTIMAL_SHARE_MIN = 0.95
# Surrogate-Control is a note of the W3C, not a part of HTTP caching. The suite itself calls its
# interoperability unclear. So its results are printed without a bar.
UNBARRED = {"surrogate-control"}
# A check shows how a cache behaves; neither result is wrong.
PASSED = {"pass", "yes"}
# Tests that a correct cache fails: no cache can pass them, or the RFC requires the opposite.
EXEMPT = ("unsatisfiable", "superseded")
LISTS = (*EXEMPT, "opted_in", "miss")


def exempt(known):
    """Returns the names of the tests without a bar because a correct cache does not pass them."""
    return {name for kind in EXEMPT for entry in known.get(kind, []) for name in entry["tests"]}


def with_bar(tests, known):
    """Returns the tests with a bar: those of shared caches that have a right outcome, which a
    correct cache reaches."""
    impossible = exempt(known)
    return [
        test for test in tests
        if test["kind"] != "check" and not test["browser"] and test["suite"] not in UNBARRED
        and test["id"] not in impossible
    ]


def share(tests):
    """Returns the share of the tests that passed. A test without a result did not pass."""
    return sum(test["verdict"] in PASSED for test in tests) / max(len(tests), 1)


def entries(known, kind, subject):
    """Yields (test, entry) of each test listed under `kind` for this subject."""
    for entry in known.get(kind, []):
        if subject in entry.get("on", [subject]):
            yield from ((name, entry) for name in entry["tests"])


def option_sets(known, subject):
    """Returns the names of the tests that run with more options, by these options."""
    sets = {}
    for name, entry in entries(known, "opted_in", subject):
        sets.setdefault(entry["options"], []).append(name)
    return sets


def adopt(tests, again, ids):
    """Sets the outcome of the tests `ids` to that of their second run; keeps the first verdict."""
    outcomes = {test["id"]: test for test in again if test["id"] in ids}
    for test in tests:
        if outcome := outcomes.get(test["id"]):
            first = test["verdict"]
            test.update(verdict=outcome["verdict"], detail=outcome["detail"], by_default=first)


def by_default(tests):
    """Returns the tests with the verdicts of the run with the default options."""
    return [dict(test, verdict=test.get("by_default", test["verdict"])) for test in tests]


def errors_of(tests, known, subject):
    """Returns the errors of the outcome of `subject`, a sentence each; [] if it conforms.

    `known` has four lists, `miss`, `opted_in`, `unsatisfiable` and `superseded`, of dictionaries
    with `tests`, `section`, `reason` and, if they hold for some subjects only, `on`. Entries of
    `opted_in` also have `options`, and their tests must fail without these.
    """
    errors = []
    by_id = {test["id"]: test for test in tests}
    barred = with_bar(tests, known)
    if not barred:
        return ["the suite ran no test"]
    may_be_missed = {test["id"] for test in barred}
    listed, excused = set(), set()
    for kind in LISTS:
        for name, entry in entries(known, kind, subject):
            if not entry.get("section") or not entry.get("reason"):
                errors.append(f"{name} is listed without a section or a reason")
            if name in listed:
                errors.append(f"{name} is listed twice")
            listed.add(name)
            if kind == "miss":
                excused.add(name)
            if name not in by_id or (kind not in EXEMPT and name not in may_be_missed):
                errors.append(f"{name} is listed, but no test with a bar has this name")
            elif kind == "opted_in":
                if by_id[name].get("by_default", "pass") in PASSED:
                    errors.append(f"{name} is listed as opted_in and passes by default")
            elif by_id[name]["verdict"] in PASSED:
                errors.append(f"{name} is listed as {kind} and passes")
    for kind, least in (("required", 1.0), ("optimal", OPTIMAL_SHARE_MIN)):
        of_kind = [test for test in barred if test["kind"] == kind]
        if share(of_kind) < least:
            errors.append(f"{share(of_kind):.1%} of the {kind} tests pass, not {least:.0%}")
        for test in of_kind:
            if test["verdict"] not in PASSED and test["id"] not in excused:
                errors.append(f"{test['id']} ({kind}) is missed and has no reason in known.toml")
    return errors


def differences(tests, published, explained):
    """Returns the verdicts of a product that differ from the published ones and are explained, and
    the errors.

    `explained` are dictionaries with `tests`, `was`, `is` and `reason`. One that is not true is an
    error. With `varies`, the published verdict is right too.
    """
    found = {
        test["id"]: (published[test["id"]], test["verdict"])
        for test in tests
        if published[test["id"]] not in (test["verdict"], "untested")
    }
    reasons, errors = {}, []
    for entry in explained:
        for name in entry["tests"]:
            seen = found.get(name)
            if seen != (entry["was"], entry["is"]) and (seen or not entry.get("varies")):
                was, now = entry["was"], entry["is"]
                errors.append(f"{name} is explained as {was}, now {now}, but differs")
            elif not entry.get("reason"):
                errors.append(f"{name} is explained without a reason")
            reasons[name] = entry["reason"]
    for name, (was, now) in found.items():
        if name not in reasons:
            errors.append(f"{name}: published {was}, here {now}, without an explanation")
    return {name: found[name] for name in found if name in reasons}, errors


def table(tests, known):
    """Returns a table in Markdown: the numbers of verdicts by kind, and of tests without a bar."""
    lines = ["| tests | passed | failed | not shown | of |", "| --- | --- | --- | --- | --- |"]
    shared = [test for test in tests if not test["browser"]]
    barred = with_bar(tests, known)
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
    """Returns lists in Markdown: every test under its verdict, misses with detail and reason."""
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
                why = f" ({reason})" if reason else ""
                parts.append(f"- `{test['id']}`{first}{detail}{why}")
            parts.append("")
    return "\n".join(parts)
