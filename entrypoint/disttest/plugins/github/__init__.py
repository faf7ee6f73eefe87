"""GitHub: annotations and folds in the log of a workflow, outputs of a step, and the summary on the page of the run.

It imports the plugin `summary`, whose report it shows there without links.
"""
