"""What reaches into private parts of grpc.aio: each module is one patch, with its reason and its guard."""
