"""`dlogctl pipeline` as a program for spark-submit, which says then where Spark runs.

    spark-submit --master spark://host:7077 examples/spark/pipeline.py --bootstrap n1:9092 \\
        archive events --to hdfs:///archive
"""

import sys

from dlogctl.__main__ import main

if __name__ == "__main__":
    options = sys.argv[1:]
    # Options of dlogctl that stand first stay first.
    first = 2 if options[:1] and options[0].startswith("--") else 0
    sys.exit(main([*options[:first], "pipeline", *options[first:]]))
