"""The appliance under test: bundles, plays on the hosts of a rig, load and samples from outside."""
