"""A bundle's README, for people who have only its folder: ``templates/README.md.j2``."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from recipe_core.base.texts import (
    quote_markdown,
    quote_markdown_block,
    quote_markdown_code,
    quote_shell,
)
from recipe_core.base.units import gib, usd
from recipe_core.hardware.prices import HOURS_PER_MONTH
from recipe_core.launch.training.sources import PATH as CONTAINERFILE
from recipe_core.models.spec import UNPLACED
from recipe_core.recipe import Recipe
from recipe_core.recipe.fallbacks import fallback_title
from recipe_core.recipe.figures import cost_text, text_rows
from recipe_core.recipe.schema import dns_label
from recipe_core.request.split_key import split_name
from recipe_core.scaling.summary import HOURS
from recipe_core.targets.by_hand import TITLES, target_uses
from recipe_core.targets.restarts import Row, Setting

# The answers of all targets to what may break.
FAILURES = "targets/failures.md"


def bundle_readme(
    recipe: Recipe,
    launch: dict[str, Any],
    paths: Collection[str],
    refused: Mapping[str, str],
    restarts: Sequence[Row] = (),
    clusters: Sequence[str] = (),
    reach: str = "",
    spot: str = "",
) -> str:
    """Markdown.

    ``paths``: those of the targets' files. ``refused``: why a target is unavailable. ``restarts``:
    who starts what again, on the target that the bundle is for, or by its launcher. ``clusters``:
    notes on clusters. ``reach``: the section on who can reach the servers. ``spot``: which targets
    ask for a spot price.
    """
    serving = recipe.kind == "serving"
    estimate, lock = recipe.estimate, recipe.lock
    place = launch["parameters"]["model"]
    key, target = launch["api"].get("key_variable"), recipe.parameters.target
    uses = target_uses(paths, dns_label(recipe.name), recipe.kind, key)
    return _readme_template().render(
        recipe=recipe,
        launch=launch,
        estimate=estimate,
        device=recipe.device,
        paths=paths,
        image=lock.image if lock else None,
        weights=recipe.candidate.get("weight_dtype", recipe.candidate.get("precision")),
        weights_place="" if place in (UNPLACED, recipe.model.id) else place,
        split=split_name(recipe.candidate),
        **(_rented_values(recipe) if serving else {}),
        spot=spot,
        compression=estimate.get("compression") if "compression" in launch else None,
        addresses=_server_addresses(launch) if serving else [],
        commands="\n".join(_process_commands(launch)),
        target=TITLES.get(target or ""),
        uses=[use for use in uses if not target or use.path.startswith(f"targets/{target}/")],
        others=sorted({use.title for use in uses} - {TITLES.get(target or "")}, key=str.casefold),
        refused=refused,
        clusters=clusters,
        reach=reach,
        restarts=restarts,
        setting=_setting_text,
        failures=FAILURES,
        latency_s=estimate.get("serving", {}).get("request_latency_s", 0.0),
        workload=_escaped_terms(
            f"{name} {value}"
            for name, value in recipe.request["workload"].items()
            if name != "kind" and value
        ),
        figures=text_rows(recipe.kind, estimate),
        price=cost_text(estimate) if serving else None,
        fallbacks=[(fallback_title(recipe, fall), fall.figures) for fall in recipe.fallbacks],
        containerfile=CONTAINERFILE,
    )


def failures_text(restarts: Sequence[Row]) -> str:
    """The answers of every target that the bundle has files of to what may break, as Markdown."""
    table = ["| where | when | who | does what |", "|---|---|---|---|"]
    for row in restarts:
        where, answer = TITLES.get(row.target, row.target), row.answer
        does = f"{answer.does}{_setting_text(answer.settings)}"
        table.append(f"| {where} | {', '.join(row.events)} | {answer.who} | {does} |")
    return "\n".join(["# When something breaks, by target", "", *table, ""])


def _setting_text(settings: Sequence[Setting]) -> str:
    return f" (`{'`, `'.join(map(str, settings))}`)" if settings else ""


@cache
def _readme_template() -> Template:
    """Nothing is escaped: the template names a filter for each text that is not the product's."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=False,  # noqa: S701 - Markdown
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "text": quote_markdown,
        "code": quote_markdown_code,
        "block": quote_markdown_block,
        "gib": gib,
        "usd": usd,
        "dollars": lambda money: "unknown" if money is None else f"${money:,.0f}",
        "devices": lambda count: f"{count:,} device{'s' * (count != 1)}",
        "wait": _waiting_time,
        "metrics": _metrics_text,
    }
    return environment.get_template("README.md.j2")


def _rented_values(recipe: Recipe) -> dict[str, Any]:
    """Devices that are paid for; of a policy of scaling also its bounds and its simulation."""
    cost, scaling = recipe.estimate["cost"], recipe.estimate.get("scaling")
    names: dict[str, Any] = {
        "scaling": scaling,
        "rented": round(cost.get("devices_rented") or recipe.device.count),
        "month_hours": HOURS_PER_MONTH,
        "simulated_hours": HOURS,
    }
    if scaling is not None:
        low, high = scaling["min_replicas"], scaling["max_replicas"]
        names["replica_span"] = f"{high}" if low == high else f"{low} to {high}"
        names["simulated"] = scaling.get("simulated")
    return names


def _waiting_time(seconds: float) -> str:
    """A time that people wait for: 40 s, 13 min, 4.1 h."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _server_addresses(launch: dict[str, Any]) -> list[str]:
    parameters = launch["parameters"]
    return [
        f"http://{parameters['host']}:{parameters['port'] + process['port_offset']}"
        for process in launch["processes"]
        if process["role"] != "worker"
    ]


def _shown_word(word: str) -> str:
    """A word for a shell, in one pair of quotes also where it holds quotes of its own."""
    if "'" not in word:
        return quote_shell(word)
    escaped = re.sub(r'(["\\`])', r"\\\1", word)
    return f'"{escaped}"'


def _process_commands(launch: dict[str, Any]) -> Iterator[str]:
    """Each command once, with the number of processes that run it, or their nodes."""
    places: dict[str, list[int]] = {}
    for process in launch["processes"]:
        places.setdefault(" ".join(map(_shown_word, process["argv"])), []).append(process["node"])
    for command, nodes in places.items():
        remarks = []
        if len(nodes) > 1 and len(set(nodes)) == 1:
            remarks.append(f"{len(nodes)} times, each on devices of its own")
        if launch["nodes"] > 1:
            remarks.append(f"on node {', '.join(map(str, sorted(set(nodes))))}")
        yield command + (f"   # {', '.join(remarks)}" if remarks else "")


def _metrics_text(metrics: Mapping[str, float | None], limit: int | None = None) -> str:
    first = list(metrics.items())[:limit]
    return _escaped_terms(f"{name} {value:.4g}" for name, value in first if value is not None)


def _escaped_terms(texts: Iterable[str]) -> str:
    return ", ".join(map(quote_markdown, texts))
