"""GitHub: annotations, failures and warnings next to the code in the pages of a workflow."""
