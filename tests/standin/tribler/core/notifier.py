from collections import Counter
from enum import Enum


class Notification(Enum):
    circuit_removed = "circuit_removed"


class Notifier:
    def __init__(self):
        self.count = Counter()

    def notify(self, topic, **details):
        assert set(details) == {"circuit", "additional_info"}
        self.count[topic.name] += 1
