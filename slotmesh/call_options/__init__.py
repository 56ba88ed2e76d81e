"""What a call may say besides its arguments: each option declared once, its rules, its form on the wire.

`model` is pure, so that cores can stand on it; `rules` and `wire` know the messages of `slotmesh.v1`.
"""
