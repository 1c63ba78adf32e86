"""Verbs of the serialization experiment."""

import sys

from tunnel_pool.gumby_experiments.nodes.run import Run
from tunnel_pool.gumby_experiments.plan.verb_lookup import of_a_node


class SerializationModule:
    """Starts a receiver and a sender, each a process, and one that takes every kind of message by itself."""

    def __init__(self, run: Run) -> None:
        self._run = run

    async def _start(self, number: int, role: str, messages: str, *more: str) -> None:
        arguments = [f"--format={self._run.setting('format')}", f"--messages={messages}"]
        arguments.append(f"--seed={self._run.experiment.seed}")
        await self._run.node(number).start([
            sys.executable, "-m", "tunnel_pool.gumby_experiments.messages", role, str(self._run.folder / "socket"),
            *arguments, *more,
        ])  # fmt: skip

    @of_a_node
    async def start_receiver(self, number: int, mode: str, mix: str, messages: str) -> None:
        await self._start(number, "receive", messages, f"--mode={mode}", f"--mix={mix}")
        await self._run.node(number).heard("listening")

    @of_a_node
    async def start_sender(self, number: int, mode: str, mix: str, messages: str) -> None:
        await self._start(number, "send", messages, f"--mode={mode}", f"--mix={mix}")

    @of_a_node
    async def wait_until_done(self, number: int) -> None:
        """Wait for the end, and take what was measured as metrics."""
        self._run.metrics |= await self._run.node(number).heard("done")

    @of_a_node
    async def measure_each_message(self, number: int, messages: str) -> None:
        await self._start(number, "each", messages)
        measured = await self._run.node(number).heard("done")
        for row in measured["rows"]:
            self._run.add_row("messages", **row)
