"""What all processes of the mesh run on: servers, channels, tasks, clocks. No behaviour of the mesh itself."""
