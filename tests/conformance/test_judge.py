"""Tests of the judge: outcomes that it must not let pass."""

import unittest

import judge


def test(name, kind="required", verdict="pass", suite="vary", browser=False):
    return {"id": name, "suite": suite, "name": name, "kind": kind, "browser": browser,
            "verdict": verdict, "detail": ""}


def entry(name, **more):
    return {"tests": [name], "section": "RFC 9111 section 4.1", "reason": "because", **more}


def misses(*names, **more):
    return {"miss": [entry(name, **more) for name in names]}


# 39 of 40 optimal tests are 97.5 %, 38 are 95 %, 37 are less.
OPTIMAL = [test(f"o{number}", "optimal") for number in range(40)]


def failed(count):
    """OPTIMAL of which `count` fail, and their entries."""
    tests = [dict(t, verdict="fail") if n < count else t for n, t in enumerate(OPTIMAL)]
    return tests, misses(*(f"o{number}" for number in range(count)))


class Complaints(unittest.TestCase):
    def errors(self, tests, known, subject="boost"):
        return judge.errors_of(tests, known, subject)

    def test_all_passed(self):
        self.assertEqual(self.errors([test("a"), *OPTIMAL], {}), [])

    def test_nothing_ran(self):
        self.assertEqual(self.errors([], {}), ["the suite ran no test"])

    def test_a_required_miss_is_never_excused(self):
        tests = [test("a", verdict="fail"), *OPTIMAL]
        self.assertEqual(len(self.errors(tests, {})), 2)
        self.assertEqual(self.errors(tests, misses("a")),
                         ["0.0% of the required tests pass, not 100%"])

    def test_a_required_test_that_is_not_shown_is_missed(self):
        for verdict in ("dependency", "setup", "harness", "retry", "untested", "fail"):
            tests = [test("a", verdict=verdict), *OPTIMAL]
            self.assertTrue(self.errors(tests, misses("a")), verdict)

    def test_optimal_share(self):
        tests, known = failed(2)
        self.assertEqual(self.errors([test("a"), *tests], known), [])
        tests, known = failed(3)
        self.assertEqual(self.errors([test("a"), *tests], known),
                         ["92.5% of the optimal tests pass, not 95%"])

    def test_a_miss_needs_a_reason_for_this_subject(self):
        tests, _ = failed(1)
        tests.append(test("a"))
        self.assertTrue(self.errors(tests, {}))
        self.assertTrue(self.errors(tests, misses("o0", on=["forward"])))
        self.assertFalse(self.errors(tests, misses("o0", on=["boost"])))
        self.assertTrue(self.errors(tests, misses("o0", section="")))
        self.assertTrue(self.errors(tests, misses("o0", reason="")))

    def test_an_entry_must_be_true(self):
        tests = [test("a"), test("b", "check", "no"), *OPTIMAL]
        self.assertTrue(self.errors(tests, misses("o1")))
        self.assertTrue(self.errors(tests, misses("b")))
        self.assertTrue(self.errors(tests, misses("nothing")))
        tests, _ = failed(1)
        self.assertTrue(self.errors([test("a"), *tests], misses("o0", "o0")))

    def test_exempt_tests_have_no_bar_and_must_not_pass(self):
        for kind in ("unsatisfiable", "superseded"):
            known = {kind: [entry("a")]}
            tests = [test("a", verdict="fail"), test("b"), *OPTIMAL]
            self.assertEqual(self.errors(tests, known), [])
            self.assertTrue(self.errors([test("a"), test("b"), *OPTIMAL], known))
            self.assertTrue(self.errors([test("b"), *OPTIMAL], known))
            self.assertTrue(self.errors(tests, {kind: [entry("a", reason="")]}))
            self.assertTrue(self.errors(tests, {**known, **misses("a")}))
            self.assertIn(f"| {kind}, no bar | 0 | 1 | 0 | 1 |", judge.table(tests, known))

    def test_opted_in_tests_fail_by_default_and_pass_with_their_options(self):
        known = {"opted_in": [entry("a", options="--b c")]}
        tests = [test("a"), test("d"), *OPTIMAL]
        self.assertEqual(self.errors([dict(tests[0], by_default="fail"), *tests[1:]], known), [])
        self.assertEqual(self.errors([dict(tests[0], by_default="pass"), *tests[1:]], known),
                         ["a is listed as opted_in and passes by default"])
        self.assertTrue(self.errors(tests, known), "a never ran with the options")
        refused = test("a", verdict="fail")
        self.assertEqual(len(self.errors([dict(refused, by_default="fail"), *tests[1:]], known)), 2)
        self.assertTrue(self.errors([dict(refused, by_default="fail"), *tests[1:]],
                                  {**known, **misses("a")}))
        self.assertTrue(self.errors([test("e", "check", "no"), *tests],
                                  {"opted_in": [entry("e", options="--b c")]}))

    def test_no_bar_for_browsers_checks_and_surrogates(self):
        tests = [
            test("a"), *OPTIMAL,
            test("b", verdict="untested", browser=True),
            test("c", "check", "no"),
            test("d", verdict="fail", suite="surrogate-control"),
        ]
        self.assertEqual(self.errors(tests, {}), [])


class SecondRun(unittest.TestCase):
    def test_options_of_the_subject(self):
        known = {"opted_in": [
            entry("a", options="--b c"), entry("d", options="--b c"), entry("e", options="--f"),
            entry("g", options="--f", on=["forward"]),
        ]}
        self.assertEqual(judge.option_sets(known, "boost"), {"--b c": ["a", "d"], "--f": ["e"]})
        self.assertEqual(judge.option_sets({}, "boost"), {})

    def test_only_the_named_tests_take_the_second_outcome(self):
        tests = [test("a", verdict="fail"), test("b", verdict="fail")]
        judge.adopt(tests, [test("a"), test("b")], ["a"])
        self.assertEqual(tests, [test("a") | {"by_default": "fail"}, test("b", verdict="fail")])
        self.assertEqual([t["verdict"] for t in judge.by_default(tests)], ["fail", "fail"])


class Differences(unittest.TestCase):
    def test_the_same(self):
        tests = [test("a"), test("b", verdict="fail"), test("c")]
        published = {"a": "pass", "b": "fail", "c": "untested"}
        self.assertEqual(judge.differences(tests, published, []), ({}, []))

    def test_other_verdicts_need_a_true_explanation(self):
        tests, published = [test("a")], {"a": "fail"}
        self.assertTrue(judge.differences(tests, published, [])[1])
        later = {"tests": ["a"], "was": "fail", "is": "pass", "reason": "a later version"}
        self.assertEqual(judge.differences(tests, published, [later])[1], [])
        self.assertTrue(judge.differences(tests, published, [dict(later, was="setup")])[1])
        self.assertTrue(judge.differences(tests, published, [dict(later, reason="")])[1])
        self.assertTrue(judge.differences(tests, {"a": "pass"}, [later])[1])
        varies = dict(later, varies=True)
        self.assertEqual(judge.differences(tests, {"a": "pass"}, [varies])[1], [])
        self.assertEqual(judge.differences(tests, published, [varies])[1], [])
        self.assertTrue(judge.differences([test("a", verdict="setup")], published, [varies])[1])


class Text(unittest.TestCase):
    def test_table_counts_every_verdict(self):
        tests = [test("a"), test("b", verdict="fail"), test("c", verdict="dependency"),
                 test("d", "check", "no"), test("e", verdict="untested", browser=True)]
        self.assertIn("| required | 1 | 1 | 1 | 3 |", judge.table(tests, {}))
        self.assertIn("| check (yes, no) | 0 | 1 | 0 | 1 |", judge.table(tests, {}))
        self.assertNotIn("default options", judge.table(tests, {}))
        judge.adopt(tests, [test("b")], ["b"])
        self.assertIn("| required | 2 | 0 | 1 | 3 |", judge.table(tests, {}))
        self.assertIn("| required, default options | 1 | 1 | 1 | 3 |", judge.table(tests, {}))

    def test_names_carry_the_reason(self):
        tests, known = failed(1)
        self.assertIn("`o0` (RFC 9111 section 4.1: because)", judge.names(tests, known, "boost"))


if __name__ == "__main__":
    unittest.main()
