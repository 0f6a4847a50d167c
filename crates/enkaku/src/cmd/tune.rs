//! `enkaku tune`: a policy as a filter, for simulators and for experiments. Samples come in
//! as JSON objects, one a line; each gets one line of answer. It only translates: what is decided
//! is decided in `path`.

use std::io::{BufRead, Read};
use std::process::ExitCode;

use anyhow::Context;
use path::{Connection, ConnectionId, Orders, PolicyConfig, Sample, Tcp, close_candidate};
use serde_json::{Map, Value, json};

use super::{Usage, say};

/// A line longer than this is not a sample; 512 connections with every field need 200 KiB.
const LINE_BYTES_MAX: u64 = 1 << 20;
/// Connections that any policy may be allowed; the 16 bits of a CID (RFC 7143 §11.12.6).
const CONNECTIONS_LIMIT: i64 = 65_535;

/// Lets a policy for the number of connections decide on samples from standard input, one JSON
/// object a line.
///
/// In: {"t_s":1.0,"n":4,"bytes_per_s":1e8}: end of the interval, connections open in it, mean
/// payload. Optional, of the path or of each element of "connections" (with "id", "age_s",
/// "bytes_per_s"): rtt_us, rtt_var_us, min_rtt_us, cwnd_bytes, in_flight_bytes,
/// not_sent_bytes, busy_share, rwnd_limited_share, sndbuf_limited_share, retransmits, app_limited,
/// peer_window_bytes, send_buffer_bytes, congestion_control. Out, one line each:
/// {"n","phase","why"}.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Read samples from standard input, write decisions to standard output.
    #[arg(long, required = true)]
    stdio: bool,
    /// adaptive, golden, fixed or fixed:N.
    #[arg(long, default_value = "adaptive")]
    policy: PolicyConfig,
    /// The most connections to ask for.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=CONNECTIONS_LIMIT))]
    connections_max: Option<u32>,
    /// The measuring time Tm of golden, in seconds [default: 5].
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    measuring_time: Option<f64>,
}

fn seconds(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    if value.is_finite() && value > 0.0 { Ok(value) } else { Err("must be above zero".to_owned()) }
}

/// Runs the command.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut config = args.policy;
    if let Some(connections_max) = args.connections_max {
        config = config.connections_max(connections_max);
    }
    match (&mut config, args.measuring_time) {
        (PolicyConfig::Golden(golden), Some(seconds)) => golden.measuring_time_s = seconds,
        (_, Some(_)) => return Err(Usage::error("--measuring-time is for --policy golden")),
        (_, None) => {}
    }
    // Nobody would keep to a rate here.
    let mut path = config.build(false);
    let mut input = std::io::stdin().lock();
    for number in 1_u64.. {
        let mut line = Vec::new();
        input.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
        if line.is_empty() {
            break;
        }
        let sample = read_sample(&line).with_context(|| Usage(format!("line {number}")))?;
        say(answer(&path.handle_sample(&sample), &sample))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn answer(orders: &Orders, sample: &Sample) -> Value {
    let mut answer = json!({
        "n": orders.connections,
        "phase": orders.phase.as_str(),
        "why": orders.why.to_string(),
    });
    if let Some(bytes) = orders.sockets.buffer_bytes {
        answer["socket_buffer_bytes"] = bytes.into();
    }
    if let Some(control) = orders.sockets.congestion_control {
        answer["congestion_control"] = control.as_str().into();
    }
    let surplus = orders.connections < sample.connections_open;
    if let Some(id) = close_candidate(sample.connections.iter()).filter(|_| surplus) {
        answer["close"] = id.0.into();
    }
    answer
}

/// What is wrong with a line, and where.
#[derive(Debug, thiserror::Error)]
enum BadLine {
    #[error("longer than {LINE_BYTES_MAX} bytes")]
    Long,
    #[error("no JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("not an object")]
    NotAnObject,
    #[error("field {0}: missing")]
    Missing(String),
    #[error("field {field}: {value} is not {wanted}")]
    Wrong { field: String, value: Value, wanted: &'static str },
}

fn read_sample(line: &[u8]) -> Result<Sample, BadLine> {
    if line.len() as u64 >= LINE_BYTES_MAX && !line.ends_with(b"\n") {
        return Err(BadLine::Long);
    }
    let value: Value = serde_json::from_slice(line)?;
    let object = Fields { object: value.as_object().ok_or(BadLine::NotAnObject)?, within: "" };
    let mut connections = Vec::new();
    if let Some(list) = object.present("connections") {
        let list = list.as_array().ok_or_else(|| object.wrong("connections", "an array"))?;
        for (index, element) in list.iter().enumerate() {
            let within = format!("connections[{index}].");
            let fields = element.as_object();
            let object =
                fields.ok_or_else(|| object.wrong("connections", "an array of objects"))?;
            connections.push(Fields { object, within: &within }.connection(index)?);
        }
    }
    Ok(Sample {
        t_s: object.number("t_s")?.ok_or_else(|| object.missing("t_s"))?,
        connections_open: object.whole("n")?.ok_or_else(|| object.missing("n"))?,
        bytes_per_s: object.rate("bytes_per_s")?.ok_or_else(|| object.missing("bytes_per_s"))?,
        tcp: object.tcp()?,
        connections,
        held_share: 0.0,
        outstanding_bytes: None,
        commands: None,
    })
}

/// The fields of an object, and how to name them in an error.
struct Fields<'a> {
    object: &'a Map<String, Value>,
    within: &'a str,
}

impl Fields<'_> {
    /// A field; null counts as absent, because some writers know no other way.
    fn present(&self, field: &str) -> Option<&Value> {
        self.object.get(field).filter(|value| !value.is_null())
    }

    fn missing(&self, field: &str) -> BadLine {
        BadLine::Missing(format!("{}{field}", self.within))
    }

    fn wrong(&self, field: &str, wanted: &'static str) -> BadLine {
        let value = self.object.get(field).cloned().unwrap_or_default();
        BadLine::Wrong { field: format!("{}{field}", self.within), value, wanted }
    }

    fn number(&self, field: &str) -> Result<Option<f64>, BadLine> {
        let Some(value) = self.present(field) else { return Ok(None) };
        value.as_f64().map(Some).ok_or_else(|| self.wrong(field, "a number"))
    }

    fn rate(&self, field: &str) -> Result<Option<f64>, BadLine> {
        match self.number(field)? {
            Some(value) if value < 0.0 => Err(self.wrong(field, "a number of at least 0")),
            value => Ok(value),
        }
    }

    fn share(&self, field: &str) -> Result<Option<f64>, BadLine> {
        match self.number(field)? {
            Some(value) if !(0.0..=1.0).contains(&value) => {
                Err(self.wrong(field, "a share from 0 to 1"))
            }
            value => Ok(value),
        }
    }

    fn whole(&self, field: &str) -> Result<Option<u32>, BadLine> {
        let Some(value) = self.present(field) else { return Ok(None) };
        let whole = value.as_u64().and_then(|value| u32::try_from(value).ok());
        whole.map(Some).ok_or_else(|| self.wrong(field, "a whole number of at least 0"))
    }

    fn connection(&self, index: usize) -> Result<Connection, BadLine> {
        let id = self.whole("id")?.unwrap_or(index as u32);
        Ok(Connection {
            id: ConnectionId(id),
            age_s: self.rate("age_s")?,
            bytes_per_s: self.rate("bytes_per_s")?,
            tcp: self.tcp()?,
        })
    }

    fn tcp(&self) -> Result<Tcp, BadLine> {
        let app_limited = match self.present("app_limited") {
            Some(value) => {
                Some(value.as_bool().ok_or_else(|| self.wrong("app_limited", "true or false"))?)
            }
            None => None,
        };
        let control = match self.present("congestion_control") {
            Some(value) => {
                let name =
                    value.as_str().ok_or_else(|| self.wrong("congestion_control", "a name"))?;
                // One that no policy knows is no mistake: the kernel has more of them.
                name.parse().ok()
            }
            None => None,
        };
        Ok(Tcp {
            rtt_us: self.rate("rtt_us")?,
            rtt_var_us: self.rate("rtt_var_us")?,
            min_rtt_us: self.rate("min_rtt_us")?,
            cwnd_bytes: self.rate("cwnd_bytes")?,
            in_flight_bytes: self.rate("in_flight_bytes")?,
            not_sent_bytes: self.rate("not_sent_bytes")?,
            busy_share: self.share("busy_share")?,
            rwnd_limited_share: self.share("rwnd_limited_share")?,
            sndbuf_limited_share: self.share("sndbuf_limited_share")?,
            retransmits: self.rate("retransmits")?,
            app_limited,
            peer_window_bytes: self.rate("peer_window_bytes")?,
            send_buffer_bytes: self.rate("send_buffer_bytes")?,
            congestion_control: control,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_line_and_one_with_everything() {
        let sample = read_sample(br#"{"t_s":1,"n":4,"bytes_per_s":2.5}"#).unwrap();
        assert_eq!((sample.t_s, sample.connections_open, sample.bytes_per_s), (1.0, 4, 2.5));
        let line = br#"{"t_s":1,"n":1,"bytes_per_s":0,"rtt_us":900,"app_limited":null,"other":[],
            "connections":[{"id":7,"age_s":2,"cwnd_bytes":3,"app_limited":true,
            "congestion_control":"dctcp"}]}"#;
        let sample = read_sample(line).unwrap();
        assert_eq!(sample.tcp.rtt_us, Some(900.0));
        let connection = &sample.connections[0];
        assert_eq!((connection.id, connection.age_s), (ConnectionId(7), Some(2.0)));
        assert_eq!(connection.tcp.app_limited, Some(true));
    }

    #[test]
    fn a_bad_line_names_the_field() {
        let cases = [
            ("{", "no JSON"),
            ("[]", "not an object"),
            (r#"{"n":4,"bytes_per_s":1}"#, "field t_s: missing"),
            (r#"{"t_s":1,"n":-1,"bytes_per_s":1}"#, "field n: -1 is not a whole number"),
            (r#"{"t_s":1,"n":1.5,"bytes_per_s":1}"#, "field n: 1.5"),
            (r#"{"t_s":1,"n":1,"bytes_per_s":-1}"#, "field bytes_per_s: -1 is not"),
            (r#"{"t_s":1,"n":1,"bytes_per_s":"x"}"#, r#"field bytes_per_s: "x" is not a number"#),
            (r#"{"t_s":1,"n":1,"bytes_per_s":1,"busy_share":2}"#, "field busy_share: 2 is not"),
            (r#"{"t_s":1,"n":1,"bytes_per_s":1,"connections":[5]}"#, "field connections"),
            (
                r#"{"t_s":1,"n":1,"bytes_per_s":1,"connections":[{},{"rtt_us":"fast"}]}"#,
                r#"field connections[1].rtt_us: "fast" is not a number"#,
            ),
        ];
        for (line, wanted) in cases {
            let error = read_sample(line.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(wanted), "{line}: {error}");
        }
        let long = vec![b' '; LINE_BYTES_MAX as usize];
        assert!(matches!(read_sample(&long), Err(BadLine::Long)));
    }
}
