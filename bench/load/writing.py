"""Writers of a topic as a process of their own, told by lines of standard input what to say.

    wait NS SECONDS     how long the worst partition took to a record sent after that time
    gap NS              the longest time between two acknowledgements of a partition since then
    forget              librdkafka's gaps count from here on
    end                 stop; what librdkafka's caller saw

Times are those of the monotonic clock, which all processes share. Each answer is a line of JSON.
A process that starts others while it measures would measure itself.
"""

import argparse
import contextlib
import json
import sys
import time

from bench.load import wire
from bench.load.acks import Writers
from bench.load.deliveries import Deliveries

READY_S = 30
TRY_S = 0.01


def _say(answer: object) -> None:
    print(json.dumps(answer), flush=True)


def _serve(writers: Writers, client: Deliveries | None) -> None:
    for line in sys.stdin:
        what, *numbers = line.split()
        if what == "wait":
            try:
                _say(writers.wait(int(numbers[0]), float(numbers[1])))
            except wire.LoadError as error:
                _say(str(error))
        elif what == "gap":
            _say(writers.longest_gap(int(numbers[0])))
        elif what == "forget" and client is not None:
            client.forget()
            _say(None)
        elif what == "end":
            return


def main() -> int:
    """Write until told to end."""
    parser = argparse.ArgumentParser(prog="python -m bench.load.writing")
    parser.add_argument("--bootstrap", required=True, help="all nodes, with commas between")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--rate", type=float, default=0, help="of a librdkafka beside; 0: none")
    options = parser.parse_args()
    client = None
    with contextlib.ExitStack() as stack:
        nodes = options.bootstrap.split(",")
        writers = stack.enter_context(Writers(nodes, options.topic, options.partitions))
        if options.rate:
            where = (options.bootstrap, options.topic, options.partitions)
            client = stack.enter_context(Deliveries(*where, options.rate))
        end = time.monotonic() + READY_S
        writers.wait(time.monotonic_ns(), READY_S)
        while client is not None and not client.is_ready() and time.monotonic() < end:
            time.sleep(TRY_S)
        _say("ready")
        _serve(writers, client)
    if client is not None:
        lost = client.sent - client.delivered
        _say({"gap_s": max(client.longest_s), "errors": client.errors, "lost": lost})
    return 0


if __name__ == "__main__":
    sys.exit(main())
