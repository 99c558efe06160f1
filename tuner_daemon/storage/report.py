"""``report.html``: one file that needs nothing else, for a person who wants to see what the search did."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from math import log10
from typing import Any

from tuner_daemon.records.measurement import Measurement, Timing

_MOST_ROWS = 500
_WIDTH, _HEIGHT, _MARGIN = 720, 260, 50
_STYLE = """
:root{color-scheme:light dark;--ink:#1b1f24;--soft:#667;--line:#d6dae0;--mark:#0a66c2;--paper:#fff}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ee;--soft:#9aa3af;--line:#353b45;--mark:#6cb2ff;--paper:#14171c}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:60rem;margin:2rem auto;
padding:0 1rem}
h1{font-size:1.4rem;margin:0}h2{font-size:1.1rem;margin:2rem 0 .5rem}p{margin:.3rem 0}.soft{color:var(--soft)}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:.25rem .7rem;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}
td.n,th.n{text-align:right}code{font:13px ui-monospace,monospace}.scroll{overflow-x:auto}
svg{width:100%;height:auto}svg text{fill:var(--soft);font-size:12px}.axis{stroke:var(--line)}
.best{fill:none;stroke:var(--mark);stroke-width:2}.dot{fill:var(--soft);opacity:.6}.base{stroke:var(--soft);
stroke-dasharray:4 4}
"""


def report_html(result: Mapping[str, Any], rows: Sequence[Measurement]) -> str:
    """``result`` is result.json; ``rows`` in order of measurement. Every text from outside is escaped."""
    title = f"{result['kernel']['name']}: {result['verdict']}"
    return "".join(
        [
            f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{_text(title)}</title>',
            f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style>',
            _head(result),
            "<h2>Best against baseline</h2>",
            _comparison(result),
            "<h2>Search</h2>",
            _plot(rows, result["baseline"]["median_s"]),
            _outcomes(result),
            "<h2>Measurements</h2>",
            _measurements(rows),
            "</html>\n",
        ]
    )


def _text(value: object) -> str:
    return escape(str(value))


def _values(values: Mapping[str, object]) -> str:
    return _text(", ".join(f"{name} = {value}" for name, value in values.items()))


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.5g}"


def _head(result: Mapping[str, Any]) -> str:
    device, clocks = result["device"], result["clocks"]
    notes = "".join(f"<p>{_text(note)}</p>" for note in result["notes"])
    about = f"{device['name']} ({device['arch']}), {device['compiler']}; clocks {clocks['mode']}"
    return (
        f"<h1>{_text(result['kernel']['name'])} <span class=soft>{_values(result['spec']['problem'])}</span></h1>"
        f"<p><strong>{_text(result['verdict'])}</strong>: {_text(result['reason'])}</p>{notes}"
        f"<p class=soft>{_text(about)}; job {_text(result['job'])}</p>"
    )


def _comparison(result: Mapping[str, Any]) -> str:
    best, baseline = result["best"], result["baseline"]
    low, high = best["speedup_ci"]
    roofline = best["roofline_fraction"]
    share = "" if roofline is None else f"; {roofline:.0%} of the roofline"
    ties = len(result["ties"])
    return (
        "<table><tr><th></th><th class=n>median ms</th><th class=n>confidence interval</th><th>configuration</th></tr>"
        f"{_compared('best', best)}{_compared('baseline', baseline)}</table>"
        f"<p>Speed-up {best['speedup']:.4g} [{low:.4g}, {high:.4g}]{share}. Noise floor {result['noise_floor']:.2%}; "
        f"{ties} configuration{'' if ties == 1 else 's'} cannot be told apart from the best.</p>"
    )


def _compared(name: str, published: Mapping[str, Any]) -> str:
    low, high = published["ci_s"]
    return (
        f"<tr><td>{name}</td><td class=n>{_ms(published['median_s'])}</td><td class=n>[{_ms(low)}, {_ms(high)}]</td>"
        f"<td><code>{_values(published['config'])}</code></td></tr>"
    )


def _outcomes(result: Mapping[str, Any]) -> str:
    counts = ", ".join(f"{n} {outcome}" for outcome, n in result["outcomes"].items())
    wall = ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in result["wall_s"].items())
    return (
        f"<p class=soft>{result['measured']} of {result['space_size']} configurations measured: {_text(counts)}. "
        f"Time: {_text(wall)}.</p>"
    )


def _plot(rows: Sequence[Measurement], baseline_s: float) -> str:
    """Every measured time and the best so far, time on a logarithmic axis."""
    timed = [(n, row.ran.median_s) for n, row in enumerate(rows) if isinstance(row.ran, Timing)]
    if not timed:
        return "<p>Nothing ran.</p>"
    times = [seconds for _, seconds in timed] + [baseline_s]
    low, high = log10(min(times)) - 0.02, log10(max(times)) + 0.02

    def x(n: float) -> float:
        return _MARGIN + n / max(1, len(rows) - 1) * (_WIDTH - 2 * _MARGIN)

    def y(seconds: float) -> float:
        return _HEIGHT - _MARGIN + (log10(seconds) - low) / (high - low) * (2 * _MARGIN - _HEIGHT)

    dots = "".join(f'<circle class="dot" cx="{x(n):.1f}" cy="{y(s):.1f}" r="2.5"/>' for n, s in timed)
    steps = " ".join(f"{x(n):.1f},{y(s):.1f}" for n, s in _best_so_far(timed, len(rows)))
    ticks = "".join(
        f'<text x="{_MARGIN - 6}" y="{y(s) + 4:.1f}" text-anchor="end">{_ms(s)}</text>'
        for s in {min(times), max(times)}
    )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="Best time by number of measurements">'
        f'<path class="axis" fill="none" d="M{_MARGIN} {_MARGIN}V{_HEIGHT - _MARGIN}H{_WIDTH - _MARGIN}"/>'
        f'<line class="base" x1="{_MARGIN}" x2="{_WIDTH - _MARGIN}" y1="{y(baseline_s):.1f}" y2="{y(baseline_s):.1f}"/>'
        f'<text x="{_WIDTH - _MARGIN}" y="{y(baseline_s) - 6:.1f}" text-anchor="end">baseline</text>'
        f'{dots}<polyline class="best" points="{steps}"/>{ticks}'
        f'<text x="{_MARGIN}" y="{_MARGIN - 16}">median, ms (log)</text>'
        f'<text x="{_WIDTH - _MARGIN}" y="{_HEIGHT - 20}" text-anchor="end">measurements: {len(rows)}</text></svg>'
    )


def _best_so_far(timed: Sequence[tuple[int, float]], n: int) -> Iterator[tuple[int, float]]:
    best_s = timed[0][1]
    for number, seconds in timed:
        if seconds < best_s:
            yield number, best_s
            best_s = seconds
        yield number, best_s
    yield n - 1, best_s


def _measurements(rows: Sequence[Measurement]) -> str:
    order = sorted(rows, key=lambda row: row.ran.median_s if isinstance(row.ran, Timing) else float("inf"))
    left_out = len(order) - _MOST_ROWS
    more = f"<p class=soft>{left_out} more in measurements.parquet.</p>" if left_out > 0 else ""
    return (
        '<div class="scroll"><table><tr><th class=n>median ms</th><th class=n>samples</th><th>outcome</th>'
        "<th>configuration</th><th>proposed by</th></tr>"
        f"{''.join(_measured(row) for row in order[:_MOST_ROWS])}</table></div>{more}"
    )


def _measured(row: Measurement) -> str:
    ran = row.ran
    if isinstance(ran, Timing):
        time, samples, detail = _ms(ran.median_s), str(len(ran.times_s)), ""
    else:
        time, samples, detail = "", "", f": {ran.detail.strip().splitlines()[0][:200]}" if ran.detail.strip() else ""
    return (
        f"<tr><td class=n>{time}</td><td class=n>{samples}</td><td>{_text(f'{ran.outcome}{detail}')}</td>"
        f"<td><code>{_values(row.config)}</code></td><td>{_text(row.proposal.proposed_by)}</td></tr>"
    )
