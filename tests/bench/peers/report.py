"""What was measured, for people (text, Markdown) and for programs (JSON: the dict itself)."""

MARKS = {"goal": "goal met", "floor": "floor held", "missed": "MISSED", "-": "-"}
NAMES = {"pantheon": "Pantheon"}


def figure(value, unit):
    if value is None:
        return "-"
    return f"{value / 1e6:.1f} MB" if unit == "bytes" else f"{value * 1e3:.0f} ms" if unit == "s" else f"{value:.1f}"


def spread(values, unit):
    values = [v for v in values if v is not None]
    return f"{figure(min(values), unit)} - {figure(max(values), unit)}" if values else "-"


def ratio(value):
    return "-" if value is None else f"{value:.3f}"


def percent(value):
    return "-" if value is None else f"{100 * value:.0f}%"


def limits(row):
    sign = "<=" if row["less_is_better"] else ">="
    return f"{sign} {row['floor']:g}", f"{sign} {row['goal']:g}"


def head(r):
    h, p = r["host"], r["pantheon"]
    lines = [f"date       {r['date']}, {r['rounds']} rounds, {r['threads']} threads, took {r['seconds']:.0f} s",
             f"host       {h['cpu']}, {h['system']}", f"cpuid      {' '.join(h['flags'])}",
             f"state      read {h['read']} GB/s by {r['threads']} threads, {h['read_1']} by one ({h['loads']}); hop {h['hop']} ns",
             f"Pantheon   {p['version']}, {p['compiler']}"]
    lines += [f"peer       {name}: {d['version']}; {d['compiler']}; {d['flags']}" for name, d in r["peers"].items()]
    return lines + [f"NOTE       {n}" for n in r["notes"]]


def text(r):
    lines = head(r)
    for row in r["rows"]:
        floor, goal = limits(row)
        isa = row["about"].get("pantheon", {}).get("isa")
        lines.append(f"\n{row['name']}   [{row['unit']}]" + (f", Pantheon by {isa}" if isa else "") + (", fast state" if row["fast_state"] else ""))
        for party, runs in row["runs"].items():
            ratios = "" if party == "pantheon" else f"   ratio {ratio(row['ratio'][party])}  ({spread_ratio(row['pairs'][party])})"
            lines.append(f"  {NAMES.get(party, party):14} {figure(row['median'][party], row['unit']):>10}  ({spread(runs, row['unit'])}){ratios}")
        lines.append(f"  to the best peer {ratio(row['ratio_to_best'])} ({spread_ratio(row['best_pairs'])}): floor {floor}, goal {goal}: {MARKS[row['verdict']]}")
        if "share" in row:
            lines.append(f"  of a pure read {percent(row['share_median'])}: floor {percent(row['share_floor'])}, goal {percent(row['share_goal'])}: "
                         f"{MARKS[row['share_verdict']]}")
        if "most" in row:
            lines.append(f"  by itself at most {figure(row['most'], row['unit'])}, of which a step {figure(row['step'], row['unit'])}: {MARKS[row['most_verdict']]}")
    if r["failures"]:
        lines += ["", "What failed:"] + [f"  {f}" for f in r["failures"]]
    return "\n".join(lines) + "\n"


def spread_ratio(values):
    values = [v for v in values if v is not None]
    return f"{min(values):.3f} - {max(values):.3f}" if values else "-"


def markdown(r):
    parties = list(dict.fromkeys(p for row in r["rows"] for p in row["runs"]))
    lines = ["```", *head(r), "```", "", "| work | " + " | ".join(NAMES.get(p, p) for p in parties) + " | to the best peer | of a pure read | floor | goal | |",
             "| --- " * (len(parties) + 6) + "|"]
    for row in r["rows"]:
        cells = [f"{figure(row['median'].get(p), row['unit'])} ({spread(row['runs'][p], row['unit'])})" if p in row["runs"] else "" for p in parties]
        floor, goal = limits(row)
        share = verdicts = ""
        if "share" in row:
            share = percent(row["share_median"])
            floor, goal = f"{floor}, {percent(row['share_floor'])}", f"{goal}, {percent(row['share_goal'])}"
            verdicts = f", {MARKS[row['share_verdict']]}"
        if "most" in row:
            floor = f"{floor}, at most {figure(row['most'], row['unit'])}"
            verdicts = f", {MARKS[row['most_verdict']]}"
        lines.append(f"| {row['name']} | " + " | ".join(cells) + f" | {ratio(row['ratio_to_best'])} ({spread_ratio(row['best_pairs'])}) | {share} | {floor} | {goal} | "
                     f"{MARKS[row['verdict']]}{verdicts} |")
    lines += [""] + [f"- failed: {f}" for f in r["failures"]] if r["failures"] else []
    return "\n".join(lines) + "\n"
