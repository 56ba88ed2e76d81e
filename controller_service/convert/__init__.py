"""Membership and operators' messages from and to the controller's values.

Resources (backends, endpoints, policies) are converted by `slotmesh.convert.specification`.
"""
