"""Ports for the metrics pages of two workers: the second one's is the next after the first one's."""

from cli.addresses import OUTSIDE_EPHEMERAL, _reserve, free_ports


def free_neighbours() -> int:
    """Return the first of two neighbouring ports, both free and reserved as `free_ports` reserves."""
    while True:
        (first,) = free_ports(1)
        if first + 1 in OUTSIDE_EPHEMERAL and _reserve(first + 1):
            return first
