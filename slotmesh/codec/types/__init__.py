"""Types of annotations and values: which are accepted, and how those unknown to msgspec are read and written."""
