"""The Open Inference Protocol, whichever way it travels: tensors, requests, answers, and what they mean as calls.

Pure: no gRPC, no protobuf, no HTTP, no numpy. A router converts its messages to these, an ingress its JSON.
"""
