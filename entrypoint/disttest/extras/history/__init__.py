"""`disttest history`: the outcomes of all runs in one SQLite file, for timings, trends and the past of each test.

``store`` opens the file and explains why it cannot be used; ``schema`` describes it. ``adding`` writes runs that
``sources`` finds and ``foreign`` reads from the reports of other tools. ``queries`` reads; ``shown``
renders.
"""
