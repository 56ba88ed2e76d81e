"""Set-up, and every name of spans, metrics and attributes, once."""
