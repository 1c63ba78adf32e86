"""A directory of results: tidy tables (one row an observation, units beside them), figures, provenance."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd

from tunnel_pool.gumby_experiments.nodes import progress, samples
from tunnel_pool.gumby_experiments.plan.config import Experiment
from tunnel_pool.system.errors import UserError

RUNS, SAMPLES, EVENTS = "runs", "samples", "events"
RUN = "run"
ERROR = "error"
CPU_PREFIX = "cpu_"
_RUN_COLUMNS = {
    RUN: ("", "number of the round; every round has each combination once"),
    ERROR: ("", "why the run came to nothing"),
    "seconds": ("s", "that the run took, start and end of its processes included"),
}
_EVENT_COLUMNS = {"time_s": ("s", "since the run began"), "node": ("", "number in the scenario"), "event": ("", "")}


class Results:
    """Holds rows by table, and the directory that they are written to."""

    def __init__(self, folder: Path, experiment: Experiment, provenance: dict[str, Any]) -> None:
        self.folder = folder
        self.experiment = experiment
        self.provenance = provenance
        self.tables: dict[str, pd.DataFrame] = {}

    @property
    def runs(self) -> pd.DataFrame:
        """Return the runs that succeeded."""
        runs = self.tables.get(RUNS, pd.DataFrame())
        return runs[runs[ERROR].isna()] if ERROR in runs else runs

    @property
    def factors(self) -> list[str]:
        return list(self.experiment.vary)

    def table(self, name: str) -> pd.DataFrame:
        """Return a table, empty where nothing was measured; of runs, those that came to something."""
        return self.runs if name == RUNS else self.tables.get(name, pd.DataFrame())

    def add(self, name: str, rows: Iterable[Mapping[str, Any]], of_run: Mapping[str, Any]) -> None:
        """Add rows to a table; each gets what says which run it is of."""
        new = pd.DataFrame([{**of_run, **row} for row in rows])
        if not new.empty:
            old = self.tables.get(name)
            self.tables[name] = new if old is None else pd.concat([old, new], ignore_index=True)

    def unit(self, column: str) -> str:
        return self.describe_column(column)[0]

    def describe_column(self, column: str) -> tuple[str, str]:
        """Return a column's unit and meaning."""
        experiment = self.experiment
        if column in experiment.metrics:
            return experiment.metrics[column].unit, experiment.metrics[column].what
        if column in experiment.units:
            return experiment.units[column], ""
        for columns in (_RUN_COLUMNS, samples.COLUMNS, progress.COLUMNS, _EVENT_COLUMNS):
            if column in columns:
                return columns[column]
        if column.startswith(CPU_PREFIX):
            return "s", f"CPU of all processes of the role {column.removeprefix(CPU_PREFIX).removesuffix('_s')}"
        return "", ""

    def write(self) -> None:
        """Write the tables, what their columns mean, and the provenance. Raises UserError."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            meanings = []
            for name, table in self.tables.items():
                table.to_csv(self.folder / f"{name}.csv", index=False)
                for column in table.columns:
                    unit, what = self.describe_column(column)
                    meanings.append({"table": name, "column": column, "unit": unit, "what": what})
            pd.DataFrame(meanings).to_csv(self.folder / "columns.csv", index=False)
            (self.folder / "provenance.json").write_text(json.dumps(self.provenance, indent=2) + "\n")
        except OSError as error:
            raise UserError(f"cannot write results to {self.folder}: {error.strerror}") from None


def read_results(folder: Path) -> Results:
    """Read what `Results.write` wrote. Raises UserError."""
    try:
        provenance = json.loads((folder / "provenance.json").read_text())
        experiment = msgspec.convert(provenance["configuration"], Experiment)
        results = Results(folder, experiment, provenance)
        for path in sorted(folder.glob("*.csv")):
            if path.stem != "columns" and path.stat().st_size > 1:
                results.tables[path.stem] = pd.read_csv(path)
    except OSError as error:
        raise UserError(f"{folder} has no results: {error.filename or folder}: {error.strerror}") from None
    except (ValueError, KeyError, msgspec.ValidationError) as error:
        raise UserError(f"{folder} has no results that can be read: {error}") from None
    return results
