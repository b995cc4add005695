"""The table of medians that run-case prints."""
import statistics

HEAD = (f"{'case':32}{'mode':21}{'peer':18}{'us/req':>8}{'[min':>8}{'max]':>8}{'sys us':>8}"
        f"{'org us':>8}{'rps':>9}{'util':>6}{'oth':>6}{'p50':>9}{'p99':>9}{'max':>9}{'>30ms':>8} n")


def print_table(rows):
    """Prints a line for each case, mode and peer; within a case and mode the cheapest first."""
    groups = {}
    for row in rows:
        groups.setdefault((row["case"], row["mode"], row["peer"]), []).append(row)

    def order(item):
        (case, mode, _), found = item
        return case, mode, median(found, "proxy_us")

    print(HEAD)
    last = None
    for (case, mode, peer), found in sorted(groups.items(), key=order):
        if (case, mode) != last:
            print()
            last = case, mode
        print(f"{case:31} {mode:20} {peer:17} " + line(found))


def median(rows, key):
    return statistics.median(row[key] for row in rows)


def line(rows):
    """Returns the figures of one case, mode and peer."""
    cost = [row["proxy_us"] for row in rows]
    late = sum(row.get("late", 0) for row in rows) / sum(row["total"] for row in rows)
    noisy = "!" if any(row["noisy"] for row in rows) else ""
    text = (f"{median(rows, 'proxy_us'):8.2f}{min(cost):8.2f}{max(cost):8.2f}"
            f"{median(rows, 'sys_us'):8.2f}{median(rows, 'origin_us'):8.2f}"
            f"{median(rows, 'rps'):9.0f}"
            f"{median(rows, 'proxy_util'):6.2f}{median(rows, 'other_util'):6.2f}"
            f"{median(rows, 'p50_us'):9.1f}{median(rows, 'p99_us'):9.1f}"
            f"{max(row.get('max_us', 0) for row in rows):9.0f}{late:8.3%} {len(rows)}{noisy}")
    if "pss_per_conn" in rows[0]:
        text += (f" pss/conn {median(rows, 'pss_per_conn'):.0f} B"
                 f" avail/conn {median(rows, 'avail_per_conn'):.0f} B"
                 f" base {median(rows, 'base_pss_kib'):.0f} KiB")
    return text
