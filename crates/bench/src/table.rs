//! The output: one table, and a line for each goal.

use crate::{
    judge::{Limit, Median, Verdict},
    workload::Workload,
};

/// One figure.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    workload: Workload,
    who: &'static str,
    what: String,
    value: f64,
    interval: Option<(f64, f64)>,
    goal: Option<(Limit, Verdict)>,
}

impl Row {
    /// A single figure.
    pub(crate) fn new(workload: Workload, who: &'static str, what: impl Into<String>, value: f64) -> Self {
        Self { workload, who, what: what.into(), value, interval: None, goal: None }
    }

    /// A median of rounds, with its interval.
    pub(crate) fn median(
        workload: Workload,
        who: &'static str,
        what: impl Into<String>,
        median: Median,
    ) -> Self {
        Self { interval: Some((median.low, median.high)), ..Self::new(workload, who, what, median.value) }
    }

    /// Holds the row to a limit, with this verdict.
    pub(crate) fn goal(self, limit: Limit, verdict: Verdict) -> Self {
        Self { goal: Some((limit, verdict)), ..self }
    }

    /// Holds the row to the goal of this figure, if it is of `who` and there is one.
    pub(crate) fn held_to(self, who: &str, goals: &[(&str, Limit)]) -> Self {
        let goal = goals.iter().find(|(what, _)| self.who == who && self.what == *what);
        match goal {
            Some((_, limit)) => {
                let verdict = limit.judge(self.value);
                self.goal(*limit, verdict)
            }
            None => self,
        }
    }

    pub(crate) fn value(&self) -> f64 {
        self.value
    }

    pub(crate) fn verdict(&self) -> Option<Verdict> {
        self.goal.map(|(_, verdict)| verdict)
    }

    /// The same figure, held to nothing.
    pub(crate) fn unjudged(self) -> Self {
        Self { goal: None, ..self }
    }
}

/// One line for each row that is held to a limit.
pub(crate) fn verdicts(rows: &[Row]) -> String {
    let line = |row: &Row| {
        let (limit, verdict) = row.goal?;
        let Row { who, what, .. } = row;
        Some(format!("{verdict}: {} {who}, {what}: {} ({limit})\n", row.workload.word(), figure(row.value)))
    };
    rows.iter().filter_map(line).collect()
}

/// All rows as a table in markdown.
pub(crate) fn markdown(rows: &[Row]) -> String {
    let head = ["load", "who", "what", "value", "90 % interval", "goal"].map(str::to_owned);
    let mut cells = vec![head];
    cells.extend(rows.iter().map(|row| {
        [
            row.workload.word().to_owned(),
            row.who.to_owned(),
            row.what.clone(),
            figure(row.value),
            row.interval.map_or(String::new(), |(low, high)| format!("{} to {}", figure(low), figure(high))),
            row.goal.map_or(String::new(), |(limit, _)| limit.to_string()),
        ]
    }));
    let width = |column: usize| cells.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; 6] = std::array::from_fn(width);
    let mut lines: Vec<String> = cells.iter().map(|row| line(row, &widths)).collect();
    lines.insert(1, line(&widths.map(|width| "-".repeat(width)), &widths));
    lines.join("\n") + "\n"
}

fn line(cells: &[String; 6], widths: &[usize; 6]) -> String {
    let padded: Vec<String> =
        cells.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}", width = *width)).collect();
    format!("| {} |", padded.join(" | "))
}

/// Shows three significant digits, with thousands apart.
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
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
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
    fn a_table_and_its_verdicts() {
        let rows = [
            Row::new(Workload::W1, "x", "pairs/s", 5.0),
            Row::median(Workload::W3, "x", "ratio", Median { value: 0.5, low: 0.4, high: 0.6 })
                .goal(Limit::AtLeast(0.25), Verdict::Met),
        ];
        let expected = "\
| load | who | what    | value | 90 % interval  | goal   |
| ---- | --- | ------- | ----- | -------------- | ------ |
| w1   | x   | pairs/s | 5.00  |                |        |
| w3   | x   | ratio   | 0.500 | 0.400 to 0.600 | ≥ 0.25 |
";
        assert_eq!(markdown(&rows), expected);
        assert_eq!(verdicts(&rows), "met: w3 x, ratio: 0.500 (≥ 0.25)\n");
    }
}
