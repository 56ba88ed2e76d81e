"""Messages and domain values, converted once a frame or run, never once a call where calls share what they have.

Invariants: protobuf messages do not pass this edge inwards; equal options are converted once and then looked up; what
is wrong with a run fails that run's calls, what is wrong with the stream is a `BadRequest`-like error of the servicer.
"""
