"""What tests lean on: waits with deadlines, real meshes, records."""
