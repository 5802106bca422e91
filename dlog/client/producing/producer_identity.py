"""Identity of a producer towards the leaders of partitions (KIP-98). Pure."""

NO_SEQUENCE = -1


class ProducerIdentity:
    """The producer id of a producer; `producer_id` is -1 until one was given out."""

    __slots__ = ("epoch", "is_wanted", "producer_id")

    def __init__(self) -> None:
        self.producer_id = -1
        self.epoch = -1
        self.is_wanted = False

    def renew(self, producer_id: int, epoch: int) -> None:
        """Use this id for whatever is numbered from now on."""
        self.producer_id = producer_id
        self.epoch = epoch
        self.is_wanted = False
