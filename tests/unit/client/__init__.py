"""The client's book-keeping, without a wire."""
