"""How each server under test is installed, started, killed and measured."""
