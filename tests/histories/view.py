"""What the judges look at: a history, sorted into logs."""

from tests.histories.history import FinalLog, History, LogKey, Outcome, Poll, Send


class View:
    """A history, sorted into logs."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.sends: dict[LogKey, list[Send]] = {}
        self.polls: dict[LogKey, list[Poll]] = {}
        self.send_of: dict[int, Send] = {}
        for send in history.sends:
            self.sends.setdefault(send.key, []).append(send)
            for number in send.numbers:
                self.send_of[number] = send
        for poll in history.polls:
            self.polls.setdefault(poll.key, []).append(poll)

    def acknowledged(self, key: LogKey) -> list[Send]:
        """Return the sends that a log has promised to keep."""
        enough = (-1,) if self.history.facts_of(key).replicas > 1 else (-1, 1)
        sends = self.sends.get(key, ())
        return [send for send in sends if send.outcome is Outcome.OK and send.acks in enough]

    def final(self, key: LogKey) -> FinalLog | None:
        """Return the last state of a log that has to be whole."""
        facts = self.history.facts_of(key)
        return None if facts.damaged or facts.deleted else self.history.finals.get(key)
