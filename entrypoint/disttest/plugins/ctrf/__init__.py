"""The report ``ctrf.json``, in the Common Test Report Format."""
