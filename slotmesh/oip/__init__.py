"""The Open Inference Protocol, over gRPC and HTTP alike: tensors, requests, answers, and the calls they map to.

Pure: no gRPC, no protobuf, no HTTP, no numpy. A router converts its messages to these, an ingress its JSON.
"""
