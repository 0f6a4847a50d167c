//! Tables for people: columns as wide as their widest cell.

/// A line for the headings and one for each row.
pub(crate) fn table<const N: usize>(headings: [&str; N], rows: Vec<[String; N]>) -> String {
    let headings = std::iter::once(headings.map(str::to_owned));
    let rows: Vec<[String; N]> = headings.chain(rows).collect();
    let widths: [usize; N] = std::array::from_fn(|column| {
        rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)
    });
    let line = |row: &[String; N]| {
        let cells: Vec<String> =
            row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        cells.join("  ").trim_end().to_owned()
    };
    let lines: Vec<String> = rows.iter().map(line).collect();
    lines.join("\n")
}

/// `512`, `4.0k`, `1.5G`: powers of 1024.
pub(super) fn bytes(count: u64) -> String {
    let mut value = count as f64;
    let mut unit = "";
    for next in ["k", "M", "G", "T", "P"] {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    if unit.is_empty() { count.to_string() } else { format!("{value:.1}{unit}") }
}

/// What is not there.
pub(crate) fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".to_owned())
}
