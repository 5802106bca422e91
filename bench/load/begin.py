"""How long a fresh interpreter takes to import a client library, and `dlogctl --help` as a whole.

The import is timed inside the interpreter, whose own start is no library's; all of the library that
producers, consumers and admins need is imported.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

LIBRARIES = {
    "dlog": "dlog.client.producer, dlog.client.consumer, dlog.client.admin, dlog.client.blocking",
    "confluent-kafka": "confluent_kafka, confluent_kafka.admin",
    "kafka-python": "kafka, kafka.admin",
    "aiokafka": "aiokafka, aiokafka.admin",
}
PROGRAM = """
import time
started = time.perf_counter()
import {}
print(time.perf_counter() - started)
"""


def main() -> int:
    """Measure once and print the result."""
    parser = argparse.ArgumentParser(prog="python -m bench.load.begin")
    parser.add_argument("--library", choices=list(LIBRARIES), required=True)
    options = parser.parse_args()
    program = [sys.executable, "-c", PROGRAM.format(LIBRARIES[options.library])]
    done = subprocess.run(program, capture_output=True, text=True, check=True, timeout=60)
    result = {"import_ms": float(done.stdout) * 1000}
    if options.library == "dlog":
        dlogctl = Path(sys.executable).with_name("dlogctl")
        started = time.perf_counter()
        subprocess.run([dlogctl, "--help"], stdout=subprocess.DEVNULL, check=True, timeout=60)
        result["help_ms"] = (time.perf_counter() - started) * 1000
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
