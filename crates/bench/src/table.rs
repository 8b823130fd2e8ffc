//! The one table that comes out.

use crate::judge::{Limit, Median, Verdict};

/// One figure.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    workload: &'static str,
    who: &'static str,
    what: &'static str,
    value: f64,
    interval: Option<(f64, f64)>,
    limit: Option<Limit>,
    pub(crate) verdict: Option<Verdict>,
}

impl Row {
    /// A single figure.
    pub(crate) fn new(workload: &'static str, who: &'static str, what: &'static str, value: f64) -> Self {
        Self { workload, who, what, value, interval: None, limit: None, verdict: None }
    }

    /// A median of rounds, with its interval.
    pub(crate) fn median(
        workload: &'static str,
        who: &'static str,
        what: &'static str,
        median: Median,
    ) -> Self {
        Self { interval: Some((median.low, median.high)), ..Self::new(workload, who, what, median.value) }
    }

    pub(crate) fn judged(self, limit: Limit, verdict: Verdict) -> Self {
        Self { limit: Some(limit), verdict: Some(verdict), ..self }
    }

    /// Held to a limit as a count.
    pub(crate) fn counted(self, limit: Limit) -> Self {
        let verdict = limit.judge(self.value);
        self.judged(limit, verdict)
    }
}

/// All rows as a table in markdown.
pub(crate) fn markdown(rows: &[Row]) -> String {
    let head = ["load", "who", "what", "value", "90 % interval", "limit", "verdict"].map(str::to_owned);
    let mut cells = vec![head];
    cells.extend(rows.iter().map(|row| {
        [
            row.workload.to_owned(),
            row.who.to_owned(),
            row.what.to_owned(),
            figure(row.value),
            row.interval.map_or(String::new(), |(low, high)| format!("{} to {}", figure(low), figure(high))),
            row.limit.map_or(String::new(), |limit| limit.to_string()),
            row.verdict.map_or(String::new(), |verdict| verdict.to_string()),
        ]
    }));
    let width = |column: usize| cells.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; 7] = std::array::from_fn(width);
    let mut lines: Vec<String> = cells.iter().map(|row| line(row, &widths)).collect();
    lines.insert(1, line(&widths.map(|width| "-".repeat(width)), &widths));
    lines.join("\n") + "\n"
}

fn line(cells: &[String; 7], widths: &[usize; 7]) -> String {
    let padded: Vec<String> =
        cells.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}", width = *width)).collect();
    format!("| {} |", padded.join(" | "))
}

/// Three digits that count, and thousands apart.
fn figure(value: f64) -> String {
    if !value.is_finite() {
        return "none".into();
    }
    let digits = match value.abs() {
        1000.0.. => return thousands(value),
        100.0.. => 0,
        10.0.. => 1,
        1.0.. => 2,
        0.0 => 0,
        _ => 3,
    };
    format!("{value:.digits$}")
}

fn thousands(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    if value < 0.0 { format!("-{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short() {
        let cases = [
            (0.0, "0"),
            (0.2514, "0.251"),
            (1.0, "1.00"),
            (12.34, "12.3"),
            (123.4, "123"),
            (999.9, "1000"),
            (1234.5, "1,234"),
            (12_345_678.0, "12,345,678"),
            (-4321.0, "-4,321"),
            (f64::NAN, "none"),
        ];
        for (value, text) in cases {
            assert_eq!(figure(value), text);
        }
    }

    #[test]
    fn a_table() {
        let rows = [
            Row::new("W1", "x", "pairs/s", 5.0),
            Row::median("W3", "x", "ratio", Median { value: 0.5, low: 0.4, high: 0.6 })
                .counted(Limit::AtLeast(0.25)),
        ];
        let expected = "\
| load | who | what    | value | 90 % interval  | limit  | verdict |
| ---- | --- | ------- | ----- | -------------- | ------ | ------- |
| W1   | x   | pairs/s | 5.00  |                |        |         |
| W3   | x   | ratio   | 0.500 | 0.400 to 0.600 | ≥ 0.25 | met     |
";
        assert_eq!(markdown(&rows), expected);
    }
}
