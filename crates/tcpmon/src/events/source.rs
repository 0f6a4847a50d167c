//! Where in the kernel each kind of event comes from, and whether this kernel permits it.

use serde::Serialize;

use super::event::Kind;

/// One place in the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Source {
    /// How the kernel calls it.
    pub program: &'static str,
    /// The kinds of events that it shows.
    pub shows: &'static [Kind],
    /// Why it cannot be used; absent: it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// The kinds that can be seen.
pub fn seen(sources: &[Source]) -> Vec<Kind> {
    let permitted = sources.iter().filter(|source| source.refused.is_none());
    permitted.flat_map(|source| source.shows.iter().copied()).collect()
}

/// For people: what is seen, then a line for each thing that is not.
pub fn describe(sources: &[Source]) -> Vec<String> {
    let names =
        |kinds: &[Kind]| kinds.iter().map(|kind| kind.as_str()).collect::<Vec<_>>().join(", ");
    let mut lines = Vec::new();
    let kinds = seen(sources);
    if !kinds.is_empty() {
        lines.push(format!("events seen: {}", names(&kinds)));
    }
    lines.extend(sources.iter().filter_map(|source| {
        let why = source.refused.as_deref()?;
        let (program, shows) = (source.program, names(source.shows));
        Some(format!("events not seen: {shows}; not permitted by this kernel: {program}: {why}"))
    }));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_seen_is_said_with_its_reason() {
        let source = |program, shows, refused: Option<&str>| Source {
            program,
            shows,
            refused: refused.map(str::to_owned),
        };
        let sources = [
            source("tp_btf/tcp_probe", &[Kind::Probe, Kind::Sack][..], None),
            source("fentry/tcp_enter_loss", &[Kind::Rto][..], Some("no tracer")),
        ];
        assert_eq!(seen(&sources), [Kind::Probe, Kind::Sack]);
        assert_eq!(
            describe(&sources),
            [
                "events seen: probe, sack",
                "events not seen: rto; not permitted by this kernel: fentry/tcp_enter_loss: no tracer",
            ]
        );
        assert_eq!(describe(&[]), Vec::<String>::new());
    }
}
