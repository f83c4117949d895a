//! The report as one page that needs nothing else.

use crate::probe::Wall;
use crate::report::{Counts, Report, Row};
use std::fmt::Write as _;

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1b2430;--soft:#5b6675;--line:#dfe4ea;--paper:#fbfcfd;--card:#fff;--good:#0b7a4b;\
--bad:#b3261e;--odd:#8a5a00;--none:#6b7480}\
@media(prefers-color-scheme:dark){:root{--ink:#e6eaf0;--soft:#9aa5b4;--line:#2a323d;--paper:#12161c;--card:#181e26;\
--good:#43c58b;--bad:#ff7a70;--odd:#f0b757;--none:#8f99a6}}\
*{box-sizing:border-box}body{margin:0;background:var(--paper);color:var(--ink);\
font:15px/1.5 ui-sans-serif,system-ui,sans-serif}main{max-width:62rem;margin:0 auto;padding:2.5rem 1.25rem}\
h1{font-size:1.5rem;margin:0 0 .25rem}h2{font-size:1.05rem;margin:2rem 0 .5rem;display:flex;\
justify-content:space-between;align-items:baseline;text-transform:capitalize}h2 span{font-weight:400;color:var(--soft);text-transform:none}\
.sum{display:flex;gap:1.5rem;align-items:center;background:var(--card);border:1px solid var(--line);\
border-radius:10px;padding:1.1rem 1.4rem;margin:1.25rem 0}.sum b{font-size:2.2rem;line-height:1.1}\
.bar{flex:1;height:10px;border-radius:5px;overflow:hidden;display:flex;background:var(--line)}.bar i{display:block}\
dl{display:grid;grid-template-columns:max-content 1fr;gap:.15rem 1.25rem;margin:0;color:var(--soft)}dd{margin:0;color:var(--ink);\
overflow-wrap:anywhere}table{width:100%;border-collapse:collapse;background:var(--card);border:1px solid var(--line)}\
td{padding:.4rem .7rem;border-top:1px solid var(--line);vertical-align:top}tr:first-child td{border-top:0}\
td:first-child{width:4.2rem;font-family:ui-monospace,monospace;color:var(--soft)}td:nth-child(2){width:9.5rem;font-weight:600}\
small{color:var(--soft);display:block;overflow-wrap:anywhere}.held{color:var(--good)}.breached{color:var(--bad)}.broken{color:var(--odd)}\
.not-applicable{color:var(--none)}.b-held{background:var(--good)}.b-breached{background:var(--bad)}.b-broken{background:var(--odd)}\
footer{margin-top:2rem;color:var(--soft);font-size:.9rem}";

/// The whole page. `digest` is that of the report as JSON, and `task` the task whose record holds it.
#[must_use]
pub fn page(report: &Report, digest: &str, task: &str) -> String {
    let counts = report.counts;
    let of = counts.applicable();
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <title>Self-test: {held} of {of} held</title><style>{STYLE}</style>\n<main><h1>Fumehood self-test, level {level}</h1>\n\
         <div class=\"sum\"><div><b class=\"{class}\">{held} of {of}</b><br>held, each with a control that turned red</div>\
         <div class=\"bar\">{bar}</div></div>\n",
        held = counts.held,
        level = report.level,
        class = if report.is_green() { "held" } else { "breached" },
        bar = bar(&counts),
    );
    facts(&mut page, report, digest, task);
    for wall in Wall::ALL {
        section(&mut page, report, wall);
    }
    enforcement(&mut page, report);
    page.push_str(
        "<footer>HELD: the attack came to its end with nothing through, and the same attack gets through where that wall is open \
         (the grey line). BREACHED: something got through. BROKEN: the probe proves nothing here, which counts against the \
         wall. NOT-APPLICABLE: it can not be asked here. A result from another host is no result.</footer></main></html>\n",
    );
    page
}

fn bar(counts: &Counts) -> String {
    let parts = [("held", counts.held), ("breached", counts.breached), ("broken", counts.broken)];
    parts.iter().map(|(name, count)| format!("<i class=\"b-{name}\" style=\"flex:{count}\"></i>")).collect()
}

fn facts(page: &mut String, report: &Report, digest: &str, task: &str) {
    let host = &report.host;
    let walls = if report.quick { "quick" } else { "full" };
    let rows = [
        ("Version", report.version.to_owned()),
        ("Date", crate::report::date(report.at_ms)),
        ("Kernel", format!("Linux {} ({}), cgroups {}", host.kernel, host.arch, host.cgroups)),
        ("Caller", host.caller.clone()),
        ("Policy", report.policy_sha256.clone()),
        (
            "Extent",
            format!("{walls}, {} left out, {} not applicable", report.left_out, report.counts.not_applicable),
        ),
        ("Report", digest.to_owned()),
        ("Record", task.to_owned()),
    ];
    page.push_str("<dl>");
    for (name, value) in rows {
        let _ = write!(page, "<dt>{name}</dt><dd>{}</dd>", escaped(&value));
    }
    page.push_str("</dl>\n");
}

fn section(page: &mut String, report: &Report, wall: Wall) {
    let rows: Vec<&Row> = report.rows.iter().filter(|row| row.wall == wall).collect();
    if rows.is_empty() {
        return;
    }
    let counts = Counts::of(rows.iter().copied());
    let (name, held, of) = (wall.name(), counts.held, counts.applicable());
    let _ = write!(page, "<h2>{name} <span>{held} of {of}</span></h2>\n<table>");
    for row in rows {
        let word = row.verdict.word();
        let reason = row.verdict.reason();
        let told = if reason.is_empty() { format!("open: {}", row.control) } else { reason.to_owned() };
        let _ = writeln!(
            page,
            "<tr><td>{}</td><td class=\"{}\">{word}</td><td>{}<small>{}</small></td></tr>",
            row.id,
            word.to_lowercase(),
            escaped(row.tries),
            escaped(&told),
        );
    }
    page.push_str("</table>\n");
}

fn enforcement(page: &mut String, report: &Report) {
    page.push_str("<h2>Held by <span>as the run itself said</span></h2>\n<table>");
    for clause in report.enforcement.as_array().into_iter().flatten() {
        let name = clause.get(0).and_then(serde_json::Value::as_str).unwrap_or_default();
        for mechanism in clause.get(1).and_then(serde_json::Value::as_array).into_iter().flatten() {
            let word = |key: &str| {
                escaped(mechanism.get(key).and_then(serde_json::Value::as_str).unwrap_or_default())
            };
            let (by, detail) = (word("name"), word("detail"));
            let _ = writeln!(page, "<tr><td>{}</td><td>{by}</td><td>{detail}</td></tr>", escaped(name));
        }
    }
    page.push_str("</table>\n");
}

/// What came from a sandbox is text, and stays it.
fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '&' => safe.push_str("&amp;"),
            '"' => safe.push_str("&quot;"),
            letter if letter.is_control() => safe.push('\u{fffd}'),
            letter => safe.push(letter),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_guest_says_stays_text() {
        assert_eq!(escaped("<script>\"&\u{1b}"), "&lt;script&gt;&quot;&amp;\u{fffd}");
    }
}
