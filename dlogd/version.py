"""The version of the software, as registered with the cluster and shown to operators."""

VERSION = "0.1.0"
