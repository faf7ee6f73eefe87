"""Files that tests leave in shared memory: finds their makers, removes the files of killed processes, names the tests."""
