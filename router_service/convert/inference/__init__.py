"""Messages of the Open Inference Protocol <-> `slotmesh.oip`, once a request."""
