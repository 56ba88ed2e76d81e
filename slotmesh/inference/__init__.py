"""The Open Inference Protocol: generated from `protos/inference/` by `make protos`; never edited.

Routers import this, and nobody else: another package of the same process that has the messages of `inference`, as
tritonclient does, cannot be loaded beside it.
"""
