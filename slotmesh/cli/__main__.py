"""`python -m slotmesh.cli`: the same as `slotmesh`."""

from __future__ import annotations

from slotmesh.cli import main

if __name__ == "__main__":
    main()
