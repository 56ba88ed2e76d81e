"""Sessions: what became of their calls, and the outcomes that are kept until clients have them."""
