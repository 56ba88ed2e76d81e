"""The wire contract: generated from `protos/slotmesh/v1/` by `make protos`; never edited."""
