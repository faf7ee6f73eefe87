"""ctrf.json says the same as the other reports; its schema is held against it in tests/workflows."""

import json

from sample_runs import SampleRun, mixed_run

from disttest.plugins.ctrf.report import ctrf_pieces


def document(run):
    return json.loads(b"".join(ctrf_pieces(run)))


def test_counts_are_those_of_the_run():
    run = mixed_run()

    summary = document(run)["results"]["summary"]

    assert len(run.bad) + len(run.collection_errors) == summary["failed"]
    assert len(run.flaky) == summary["flaky"]
    states = ("passed", "failed", "skipped", "pending", "other")
    assert sum(summary[state] for state in states) == summary["tests"]


def test_every_test_is_there_once_and_bad_ones_say_why():
    run = mixed_run()

    tests = document(run)["results"]["tests"]

    assert len(run.tests) + len(run.collection_errors) == len(tests)
    assert all(test.get("message") or test.get("trace") for test in tests if test["status"] == "failed")


def test_attempts_of_a_flaky_test_are_told():
    run = mixed_run()
    tests = document(run)["results"]["tests"]

    retried = [test for test in tests if test.get("retries")]

    assert run.flaky, "the sample has a flaky test"
    assert {test["name"] for test in retried if test["flaky"]} == {test.test.nodeid for test in run.flaky}
    assert all(len(test["retryAttempts"]) == test["retries"] for test in retried)


def test_a_run_without_tests_is_a_document():
    assert document(SampleRun().finish())["results"]["tests"] == []
