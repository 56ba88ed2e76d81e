"""What tests lean on: waits with deadlines, meshes, records; in `fakes`, what stands in for real services."""
