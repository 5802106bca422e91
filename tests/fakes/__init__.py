"""Stand-ins and scenes that tests share: disks with every fault, engines, nodes, logs, clients."""
