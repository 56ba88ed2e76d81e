"""A client of the greeter: gRPC and the stubs of its proto, nothing of slotmesh."""

from __future__ import annotations

import argparse

import grpc

from examples.own_proto.greeter_pb2 import GreetRequest
from examples.own_proto.greeter_pb2_grpc import GreeterStub


def greetings(address: str) -> list[str]:
    """What the greeter at the router of this address says, a line for each of its rpcs."""
    both = [GreetRequest(name="Ada"), GreetRequest(name="Grace")]
    with grpc.insecure_channel(address) as channel:
        stub = GreeterStub(channel)
        return [
            stub.Greet(both[0]).text,
            " ".join(response.text for response in stub.GreetInLanguages(both[0])),
            stub.GreetAll(iter(both)).text,
            " ".join(response.text for response in stub.Chat(iter(both))),
        ]


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.own_proto.client", description="Asks for greetings.")
    parser.add_argument("address", metavar="HOST:PORT", help="a router, as localhost:7071")
    for line in greetings(parser.parse_args().address):
        print(line)


if __name__ == "__main__":
    _main()
