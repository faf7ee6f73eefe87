"""The part of the runs with real ranks that `make test` includes: verdicts, hangs, retries, reports, torch's classes."""
