"""Stand-ins for what the operating system gives: disks with every fault, clocks, engines."""
