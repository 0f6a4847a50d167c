//! The seconds that were watched, as curves of the page.

use std::fmt::Write;

use crate::facts::Curves;
use crate::units::{rate, size, time};

/// The figure's width, the width kept for words in it, and the height of one curve with the space
/// below it.
const SIZE: (f64, f64, f64) = (720.0, 160.0, 84.0);
/// The space below a curve, in which the lowest curve has its times.
const SPACE: f64 = 20.0;

/// Name, values, how a value is written, and the colour.
type Curve<'a> = (&'a str, &'a [f64], fn(f64) -> String, &'static str);

/// Adds the figure.
pub(super) fn curves(page: &mut String, curves: &Curves) {
    let (width, words, height) = SIZE;
    let all: [Curve<'_>; 3] = [
        ("rate", &curves.bytes_per_s, rate, "#0072b2"),
        ("in flight", &curves.in_flight_bytes, size, "#cc79a7"),
        ("round trip", &curves.rtt_us, |us| time(us / 1e6), "#e69f00"),
    ];
    let most = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
    // What only receives has nothing in flight.
    let shown: Vec<_> = all.iter().filter(|one| one.1.len() > 1 && most(one.1) > 0.0).collect();
    if shown.is_empty() {
        return;
    }
    let tall = height * shown.len() as f64;
    page.push_str("<h3>While it was watched</h3>\n");
    let _ = writeln!(page, "<svg viewBox=\"0 0 {width} {tall}\" width=\"{width}\" role=\"img\">");
    for (at, (name, values, unit, colour)) in shown.iter().enumerate() {
        let (top, most) = (height * at as f64, most(values));
        let bottom = top + height - SPACE;
        let step = (width - words) / (values.len() - 1) as f64;
        let place = |(at, value): (usize, &f64)| {
            let y = bottom - (height - SPACE - 4.0) * value / most;
            format!("{:.1},{y:.1}", words + step * at as f64)
        };
        let points: Vec<String> = values.iter().enumerate().map(place).collect();
        let _ = writeln!(
            page,
            "<text x=\"0\" y=\"{:.1}\" font-size=\"13\">{name}</text>\
             <text x=\"0\" y=\"{:.1}\" font-size=\"13\">up to {}</text>\
             <line x1=\"{words}\" x2=\"{width}\" y1=\"{bottom}\" y2=\"{bottom}\" stroke=\"#999\"/>\
             <polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"/>",
            top + 16.0,
            top + 33.0,
            unit(most),
            points.join(" "),
        );
    }
    let end = curves.step_s * (shown[0].1.len() - 1) as f64;
    let _ = writeln!(
        page,
        "<text x=\"{words}\" y=\"{y:.1}\" font-size=\"12\">0 s</text>\
         <text x=\"{width}\" y=\"{y:.1}\" font-size=\"12\" text-anchor=\"end\">{}</text>\n</svg>",
        time(end),
        y = tall - 5.0,
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_curve_has_its_greatest_value_and_its_time() {
        let mut page = String::new();
        let found = Curves {
            step_s: 2.5,
            bytes_per_s: vec![0.0, 125e6, 62.5e6],
            in_flight_bytes: vec![0.0; 3],
            rtt_us: vec![40_000.0, 50_000.0, 40_000.0],
        };
        curves(&mut page, &found);
        assert_eq!(page.matches("<polyline").count(), 2, "nothing is in flight: {page}");
        for text in
            ["up to 1.0 Gbit/s", "up to 50.0 ms", ">5.0 s<", "160.0,64.0 440.0,4.0 720.0,34.0"]
        {
            assert!(page.contains(text), "{text}: {page}");
        }
        let before = page.clone();
        curves(&mut page, &Curves::default());
        assert_eq!(page, before);
    }
}
