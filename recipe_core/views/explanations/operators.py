"""The ledger of an estimate as rows to multiply out, and where their numbers are from.

Each row is an expression with four digits: operations over peak · efficiency, bytes over bandwidth
· efficiency, both joined on the rounded roofline with the start of its kernels, times how many
there are. The formulas are those of docs/method/physics.md ("Time of one operator", "Collectives").
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from recipe_core.base.provenance import Quantity, Source
from recipe_core.base.units import prefixed, seconds, significant
from recipe_core.estimates.ledger import Entry, Kernel, Overhead, Sum, Transfer
from recipe_core.hardware.cluster import priors
from recipe_core.hardware.profile import Device

DIGITS = 4
"""Digits of a row, so that products of a few of them agree to three."""


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """One operator of a part: texts, of which ``compute``, ``moved`` and ``once`` are equations.

    ``once_s · count = time_s``; ``part`` is a name of the estimate's breakdown.
    """

    part: str
    operator: str
    compute: str
    moved: str
    once: str
    count: str
    time: str
    once_s: float
    number: float
    time_s: float


@dataclass(frozen=True, slots=True)
class Working:
    """The operators of one step."""

    title: str
    rows: tuple[OperatorRow, ...]


@dataclass(frozen=True, slots=True)
class Constant:
    """A number of the rows: what it is, its value, how it is known, and where from."""

    name: str
    value: str
    status: str
    source: str


def exact(value: float) -> str:
    """Four significant digits."""
    return significant(value, DIGITS)


def time_text(value_s: float) -> str:
    """Seconds with four digits: ``88.59 µs``."""
    return seconds(value_s, DIGITS)


def work_text(value: float, unit: str) -> str:
    """An amount of work with four digits and a decimal prefix: ``3.676 GFLOP``."""
    return prefixed(value, unit, DIGITS)


def share_text(value: float) -> str:
    """An efficiency or an exponent, as the data files write it: at most four digits."""
    return f"{value:.4g}"


def plain_number(value: float) -> str:
    """A count: whole where it is, else four digits."""
    return f"{value:,.0f}" if abs(value - round(value)) < 1e-9 * abs(value) else exact(value)


def working(title: str, parts: Mapping[str, Sum], hidden: str = "") -> Working:
    """Rows of recorded parts. What computing hides of a part is one row, named by ``hidden``."""
    return Working(
        title, tuple(row for name, of in parts.items() for row in _rows(name, of, hidden))
    )


def _rows(part: str, of: Sum, hidden: str) -> Iterator[OperatorRow]:
    alike: dict[tuple[str, float], tuple[Entry, float]] = {}
    behind_s = 0.0
    for entry, count in of.terms:
        if count < 0:
            behind_s -= count * entry.seconds
            continue
        # layers of two kinds may hold the same product
        key = (_name(entry), round(entry.seconds, 15))
        alike[key] = (entry, alike.get(key, (entry, 0.0))[1] + count)
    for entry, count in alike.values():
        compute, moved, once = _equations(entry)
        total_s = entry.seconds * count
        yield OperatorRow(
            part,
            _name(entry),
            compute,
            moved,
            once,
            plain_number(count),
            time_text(total_s),
            entry.seconds,
            count,
            total_s,
        )
    if behind_s > 0:
        once = time_text(behind_s)
        yield OperatorRow(part, hidden, "", "", once, "-1", f"-{once}", behind_s, -1.0, -behind_s)


def _name(entry: Entry) -> str:
    """What a row is called; a product with its dimensions."""
    if isinstance(entry, Kernel) and entry.dims:
        rows, inputs, outputs = (plain_number(size) for size in entry.dims)
        return f"{entry.label}: {rows} × {inputs} × {outputs}"
    if isinstance(entry, Transfer):
        size = work_text(entry.data_bytes, "B")
        return f"{entry.label} of {size}, {plain_number(entry.ranks)} ranks, {entry.algorithm}"
    return entry.label


def _equations(entry: Entry) -> tuple[str, str, str]:
    """Compute, bytes and the time of one, as equations."""
    if isinstance(entry, Kernel):
        return _kernel(entry)
    if isinstance(entry, Transfer):
        return _transfer(entry)
    if isinstance(entry, Overhead):
        if entry.per == "byte":
            rate = work_text(1 / entry.each_s, "B/s")
            moved = f"{work_text(entry.count, 'B')} ÷ {rate}"
            return "", f"{moved} = {time_text(entry.seconds)}", time_text(entry.seconds)
        factors = [plain_number(entry.count), time_text(entry.each_s)]
        if entry.count == 1:
            factors = factors[1:]
        return "", "", _result(entry.slower, " × ".join(factors), entry.seconds, grouped=False)
    raise TypeError(f"no equations for {type(entry).__name__}")


def _result(slower: float, inside: str, once_s: float, *, grouped: bool = True) -> str:
    """``slower × (inside) = time``; without a factor of 1, and without an equation to itself."""
    if abs(slower - 1) < 1e-9:
        equation = inside
    else:
        equation = (
            f"{share_text(slower)} × ({inside})" if grouped else f"{share_text(slower)} × {inside}"
        )
    time = time_text(once_s)
    return time if equation == time else f"{equation} = {time}"


def _kernel(entry: Kernel) -> tuple[str, str, str]:
    shape, device = entry.shape, entry.device
    if shape is None or device is None:
        raise TypeError("a kernel without its roofline")
    peak = device.peak_flops_per_s[entry.dtype].value  # type: ignore[index]  # a dtype of the profile
    bandwidth = device.memory_bandwidth_bytes_per_s.value
    row_time = "" if entry.row_time == 1 else f"{share_text(entry.row_time)} × "
    compute_s = entry.row_time * entry.flops / (peak * shape.compute_efficiency)
    memory_s = entry.moved_bytes / (bandwidth * shape.memory_efficiency)
    compute = moved = ""
    if compute_s > 0:
        rate = f"({work_text(peak, 'FLOP/s')} × {share_text(shape.compute_efficiency)})"
        compute = f"{row_time}{work_text(entry.flops, 'FLOP')} ÷ {rate} = {time_text(compute_s)}"
    if memory_s > 0:
        rate = f"({work_text(bandwidth, 'B/s')} × {share_text(shape.memory_efficiency)})"
        moved = f"{work_text(entry.moved_bytes, 'B')} ÷ {rate} = {time_text(memory_s)}"
    busy = [time_text(value_s) for value_s in (compute_s, memory_s) if value_s > 0]
    if len(busy) == 2 and shape.smoothing != 1:
        r = share_text(shape.smoothing)
        busy = [f"({busy[0]}^{r} + {busy[1]}^{r})^(1 ÷ {r})"]
    start = time_text(shape.overhead_s)
    terms = [start if entry.starts == 1 else f"{plain_number(entry.starts)} × {start}"]
    if entry.sorted_share and shape.sort_s:
        terms.append(f"{exact(entry.sorted_share)} × {time_text(shape.sort_s)}")
    terms += busy
    if entry.row_bytes:
        share = shape.row_efficiency or shape.memory_efficiency
        rate = f"({work_text(bandwidth, 'B/s')} × {share_text(share)})"
        terms.append(f"{row_time}{work_text(entry.row_bytes, 'B')} ÷ {rate}")
    return compute, moved, _result(entry.slower, " + ".join(terms), entry.seconds)


def _transfer(entry: Transfer) -> tuple[str, str, str]:
    rate = f"({work_text(entry.bandwidth_bytes_per_s, 'B/s')} × {share_text(entry.efficiency)})"
    busy_s = entry.moved_bytes / (entry.bandwidth_bytes_per_s * entry.efficiency)
    moved = f"{work_text(entry.moved_bytes, 'B')} ÷ {rate} = {time_text(busy_s)}"
    terms = [
        time_text(start_s) if count == 1 else f"{plain_number(count)} × {time_text(start_s)}"
        for start_s, count in entry.starts
    ]
    return "", moved, _result(entry.slower, " + ".join([*terms, time_text(busy_s)]), entry.seconds)


# Where the numbers are from


def constants(parts: Iterable[Mapping[str, Sum]]) -> list[Constant]:
    """The numbers of the hardware that the recorded parts use, each once."""
    out: dict[tuple[str, str], Constant] = {}
    for some in parts:
        for of in some.values():
            for entry, count in of.terms:
                if count <= 0:
                    continue
                for constant in _of_entry(entry):
                    out[(constant.name, constant.value)] = constant
    return list(out.values())


def _of_entry(entry: Entry) -> Iterator[Constant]:
    if isinstance(entry, Kernel) and entry.device is not None:
        yield from _of_kernel(entry, entry.device)
    elif isinstance(entry, Transfer):
        yield from _of_transfer(entry)


def sourced(name: str, quantity: Quantity, unit: str, sources: Mapping[str, Source]) -> Constant:
    """A quantity of a data file."""
    value = work_text(quantity.value, unit) if unit else exact(quantity.value)
    source = cited(sources, quantity.source, quantity.note)
    return Constant(name, value, quantity.status, source)


def cited(sources: Mapping[str, Source], key: str, remark: str | None = None) -> str:
    """The title of a source with its date, and what is remarked on the number."""
    source = sources.get(key)
    if source is None:
        return key if remark is None else f"{key}; {remark}"
    title = source.title if source.date is None else f"{source.title} ({source.date})"
    return title if remark is None else f"{title}; {remark}"


def _of_kernel(entry: Kernel, device: Device) -> Iterator[Constant]:
    shape = entry.shape
    if shape is None:
        return
    peak = device.peak_flops_per_s[entry.dtype]  # type: ignore[index]  # a dtype of the profile
    if entry.flops:
        yield sourced(f"Peak in {entry.dtype}", peak, "FLOP/s", device.sources)
    bandwidth = device.memory_bandwidth_bytes_per_s
    yield sourced("Memory bandwidth", bandwidth, "B/s", device.sources)
    own = any(shape is known for known in device.roofline.get(entry.family, {}).values())
    sources = device.sources if own else priors().sources
    figures = [
        f"compute {share_text(shape.compute_efficiency)}",
        f"memory {share_text(shape.memory_efficiency)}",
        f"start {time_text(shape.overhead_s)}",
        f"exponent {share_text(shape.smoothing)}",
    ]
    if entry.row_bytes:
        figures.append(f"rows {share_text(shape.row_efficiency or shape.memory_efficiency)}")
    if entry.row_bytes and shape.sort_s:
        figures.append(f"sorting {time_text(shape.sort_s)}")
    kind = FAMILIES[entry.family]
    source = cited(sources, shape.source, shape.note)
    yield Constant(
        f"{kind}, {entry.stored_dtype}" if own else kind,
        ", ".join(figures),
        shape.status if own else f"prior ({shape.status})",
        source if own else f"{source}: this device has none of its own",
    )


FAMILIES = {
    "gemm": "Matrix products",
    "moe": "Routed experts",
    "attention_prefill": "Attention over a prompt",
    "attention_decode": "Attention over the cache",
    "mla_prefill": "Latent attention over a prompt",
    "mla_decode": "Latent attention over the cache",
    "elementwise": "Elementwise kernels",
}
"""Families of operators that share a roofline."""


def _of_transfer(entry: Transfer) -> Iterator[Constant]:
    fabric = entry.fabric
    if fabric is None:
        return
    yield sourced(f"{fabric.title}, bandwidth", fabric.bandwidth_bytes_per_s, "B/s", fabric.sources)
    links = fabric.direct if entry.direct and fabric.direct is not None else fabric
    way = "direct kernels" if entry.direct else "library"
    start = links.latency_s
    per_rank = links.latency_per_rank_s
    figures = [
        f"efficiency {share_text(links.efficiency.value)}",
        f"start {time_text(start.value)}",
    ]
    if per_rank is not None:
        figures.append(f"per rank {time_text(per_rank.value)}")
    yield Constant(
        f"{fabric.title}, {way}",
        ", ".join(figures),
        links.efficiency.status,
        cited(fabric.sources, links.efficiency.source, links.efficiency.note),
    )
