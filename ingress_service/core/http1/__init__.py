"""One connection of HTTP/1.1, without input and output: bytes and times are events, what is to be done is returned."""
