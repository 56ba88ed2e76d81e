"""The conformance suite: runs a client in any language against the rules of docs/protocol.md.

`python -m slotmesh.conformance --client "COMMAND"`; README.md beside this file describes the adapter that it drives.
"""
