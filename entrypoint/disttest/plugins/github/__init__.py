"""GitHub: annotations and folds in the log of a workflow, outputs of a step, and the summary on the page of the run."""
