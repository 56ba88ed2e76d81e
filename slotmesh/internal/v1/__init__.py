"""The contract between servers of a mesh: generated from `protos/slotmesh/internal/v1/` by `make protos`; never edited."""
