"""From events to results: the journal, the one aggregate that folds it, and the verdict over ranks."""
