"""Puts the simulated clients' tables into words."""

from collections.abc import Iterator

from tunnel_pool.gumby_experiments.results.report import number
from tunnel_pool.gumby_experiments.results.results import Results


def findings(results: Results) -> Iterator[str]:
    runs = results.runs
    if runs.empty:
        return
    for (placement, percent), rows in runs.groupby(["placement", "hostile_percent"]):
        mean = rows.groupby("rules")["both_ends_percent"].mean()
        said = ", ".join(f"{rules} {number(mean[rules])} %" for rules in ("before", "ours", "tor") if rules in mean)
        where = "in one /16" if placement == "one_network" else "spread over networks"
        yield f"{percent} % hostile, {where}: clients with both ends hostile: {said} (mean of sizes and hop counts)."
    for rules, rows in runs[runs["rules"] != "tor"].groupby("rules"):
        found, after = number(rows["found_percent"].mean()), number(rows["requests_until_found"].median())
        guards = number(rows["relay_is_guard_percent"].mean())
        yield (
            f"A relay asks a hidden seeder for rendezvous ({rules}): of those that are no guard {found} % see its "
            f"first hop, after {after} requests (median; 0: none did); {guards} % of its candidates are guards, of "
            "either layer and in reserve."
        )
    yield (
        "The model of Tor has one guard, and every client knows every node; ours two, of the 24 nodes that it knows. "
        "Nodes are of equal bandwidth, and there on 95 % of the days."
    )
