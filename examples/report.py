"""Sums a table of sales: by product and by month, as a page and as JSON.

    python3 report.py sales.csv            (results in /out, which a sandbox collects)
    python3 report.py sales.csv FOLDER     (results in FOLDER)
"""

import csv
import json
import pathlib
import sys
from collections import defaultdict
from decimal import Decimal


def read(path):
    with open(path, newline="", encoding="utf-8") as table:
        for row in csv.DictReader(table):
            yield row["date"][:7], row["product"], int(row["count"]) * Decimal(row["price"])


def page(by_product, by_month):
    lines = ["# Sales", ""]
    for title, sums in (("Product", by_product), ("Month", by_month)):
        lines += [f"| {title} | Sum |", "|---|---:|"]
        lines += [f"| {name} | {total:.2f} |" for name, total in sums]
        lines.append("")
    return "\n".join(lines)


def main():
    source = sys.argv[1]
    target = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else "/out")
    products, months = defaultdict(Decimal), defaultdict(Decimal)
    rows = 0
    for month, product, amount in read(source):
        products[product] += amount
        months[month] += amount
        rows += 1
    by_product = sorted(products.items(), key=lambda item: -item[1])
    by_month = sorted(months.items())
    (target / "report.md").write_text(page(by_product, by_month), encoding="utf-8")
    sums = {"products": by_product, "months": by_month}
    (target / "report.json").write_text(json.dumps(sums, default=str, indent=2) + "\n", encoding="utf-8")
    print(f"{rows} rows, {len(products)} products, total {sum(products.values()):.2f}")


if __name__ == "__main__":
    main()
