//! The report for a terminal.

use crate::finding::Verdict;
use crate::probe::Wall;
use crate::report::{Counts, Report, Row};
use std::fmt::Write as _;

/// A table by wall; what is not held is told in full.
#[must_use]
pub fn table(report: &Report) -> String {
    let host = &report.host;
    let mut page = format!(
        "fumehood {} at level {}, as {}, on Linux {} ({}), cgroups {}\npolicy {}\n",
        report.version,
        report.level,
        host.caller,
        host.kernel,
        host.arch,
        host.cgroups,
        report.policy_sha256.get(..16).unwrap_or("unknown"),
    );
    for wall in Wall::ALL {
        let rows: Vec<&Row> = report.rows.iter().filter(|row| row.wall == wall).collect();
        if rows.is_empty() {
            continue;
        }
        let counts = Counts::of(rows.iter().copied());
        let (count, word) = if report.open { (counts.breached, "red") } else { (counts.held, "held") };
        let _ = writeln!(page, "\n{:<12}{count} of {} {word}", wall.name(), counts.applicable());
        for row in rows {
            line(&mut page, row);
        }
    }
    let Counts { held, breached, broken, not_applicable } = report.counts;
    let of = report.counts.applicable();
    if report.open {
        let _ = writeln!(
            page,
            "\nevery wall was opened: {breached} of {of} probes turned red; {held} stayed green, {broken} broken, \
             {not_applicable} not applicable; {:.1} s",
            seconds(report.took_ms),
        );
        return page;
    }
    let _ = writeln!(
        page,
        "\n{held} of {of} held, each with a control that turned red; {breached} breached, {broken} broken, \
         {not_applicable} not applicable; {} left out; {:.1} s",
        report.left_out,
        seconds(report.took_ms),
    );
    page
}

fn line(page: &mut String, row: &Row) {
    let _ = writeln!(page, "  {:<6}{:<15}{}", row.id, row.verdict.word(), row.tries);
    if row.verdict != Verdict::Held {
        let _ = writeln!(page, "        {}", row.verdict.reason());
    }
    for apart in &row.apart {
        let _ = writeln!(page, "        apart from {apart}");
    }
}

fn seconds(ms: u64) -> f64 {
    std::time::Duration::from_millis(ms).as_secs_f64()
}
