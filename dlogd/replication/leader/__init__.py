"""The leader's half of replication: sessions of followers and the ISR."""
