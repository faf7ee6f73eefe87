"""Has the ranks of a test draw the same examples of hypothesis."""
