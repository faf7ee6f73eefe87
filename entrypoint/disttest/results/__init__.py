"""From events to results: the journal, the aggregate that folds it, and the verdict over ranks."""
