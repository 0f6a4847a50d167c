//! What the path of a volume does, as a `dict`: the names are those of `enkaku copy --json`
//! (docs/connections.md), of which these are the ones that a program would look at.

use iscsi::initiator::{PathConnection, PathReport};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

/// The path as of its last sample, ten times a second.
pub(crate) fn path<'py>(py: Python<'py>, report: &PathReport) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("policy", report.policy)?;
    dict.set_item("phase", report.phase)?;
    dict.set_item("why", &report.why)?;
    dict.set_item("connections_wanted", report.connections_wanted)?;
    dict.set_item("connections_open", report.connections_open)?;
    dict.set_item("bytes_per_s", report.bytes_per_s)?;
    dict.set_item("carried_bytes", report.carried_bytes)?;
    dict.set_item("line_bytes_per_s", report.line_rate)?;
    dict.set_item("limit", report.limit.as_str())?;
    let links = report.connections.iter().map(|one| connection(py, one));
    dict.set_item("connections", PyList::new(py, links.collect::<PyResult<Vec<_>>>()?)?)?;
    Ok(dict)
}

fn connection<'py>(py: Python<'py>, report: &PathConnection) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("id", report.id)?;
    dict.set_item("bytes_per_s", report.bytes_per_s)?;
    dict.set_item("rtt_s", report.rtt.as_secs_f64())?;
    dict.set_item("min_rtt_s", report.min_rtt.map(|rtt| rtt.as_secs_f64()))?;
    dict.set_item("cwnd_bytes", report.congestion_window)?;
    dict.set_item("retransmits", report.retransmits)?;
    dict.set_item("congestion_control", &report.congestion_control)?;
    dict.set_item("commands", report.in_flight)?;
    dict.set_item("limit", report.limit.as_str())?;
    Ok(dict)
}
