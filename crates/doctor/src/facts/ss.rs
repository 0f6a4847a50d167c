//! What `ss -tnmi` of iproute2 prints, for hosts that are looked at through what somebody has saved
//! of them. Live, sockets are read by `tcpmon`.

use std::net::{IpAddr, SocketAddr};

use super::Tcp;
use super::files::clean;

/// Sockets that are kept.
const SOCKETS_MAX: usize = 4096;

/// The established connections; what is none is passed over.
pub fn sockets(text: &str) -> Vec<Tcp> {
    let mut found: Vec<Tcp> = Vec::new();
    for line in text.lines() {
        if line.starts_with([' ', '\t']) {
            if let Some(tcp) = found.last_mut() {
                details(tcp, line);
            }
        } else if let Some(tcp) = head(line).filter(|_| found.len() < SOCKETS_MAX) {
            found.push(tcp);
        }
    }
    found
}

/// `ESTAB 0 0 LOCAL:PORT PEER:PORT …`
fn head(line: &str) -> Option<Tcp> {
    let mut words = line.split_whitespace();
    let (state, _, _) = (words.next()?, words.next()?, words.next()?);
    if state != "ESTAB" {
        return None;
    }
    let (local, remote) = (address(words.next()?)?, address(words.next()?)?);
    Some(Tcp::between(local, remote))
}

impl Tcp {
    /// A connection of which nothing else is known.
    pub fn between(local: SocketAddr, remote: SocketAddr) -> Self {
        Self {
            local,
            remote,
            congestion_control: String::new(),
            rtt_us: None,
            rtt_min_us: None,
            segment_bytes: None,
            path_mtu_bytes: None,
            cwnd_bytes: None,
            receive_buffer_bytes: None,
            send_buffer_bytes: None,
            send_window_bytes: None,
            window_scaling: None,
            retransmitted_segments: 0,
            data_segments_out: None,
            timeouts_in_a_row: 0,
            unacked_segments: 0,
        }
    }
}

/// An IPv4 address of a dual-stack socket is one of IPv4; a device (`%eth0`) is left out.
fn address(text: &str) -> Option<SocketAddr> {
    let (host, port) = text.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let host = host.split('%').next().unwrap_or_default();
    let host: IpAddr = host.parse().ok()?;
    Some(SocketAddr::new(host.to_canonical(), port.parse().ok()?))
}

fn details(tcp: &mut Tcp, line: &str) {
    // `ss` says scaling and SACK as words of their own where they are in use.
    tcp.window_scaling.get_or_insert(false);
    for word in line.split_whitespace() {
        let Some((name, value)) = word.split_once(':') else {
            if ["cubic", "reno", "bbr", "dctcp", "htcp", "vegas", "westwood"].contains(&word) {
                tcp.congestion_control = clean(word);
            }
            continue;
        };
        let number = || value.parse::<u64>().ok();
        match name {
            "skmem" => memory(tcp, value),
            "wscale" => tcp.window_scaling = Some(true),
            "rtt" => {
                let rtt_ms = value.split('/').next().and_then(|ms| ms.parse::<f64>().ok());
                tcp.rtt_us = rtt_ms.map(|ms| ms * 1e3);
            }
            "minrtt" => tcp.rtt_min_us = value.parse::<f64>().ok().map(|ms| ms * 1e3),
            "mss" => tcp.segment_bytes = number(),
            "pmtu" => tcp.path_mtu_bytes = number(),
            "cwnd" => {
                let segment = tcp.segment_bytes.unwrap_or_default();
                tcp.cwnd_bytes = number().map(|segments| segments.saturating_mul(segment));
            }
            "data_segs_out" => tcp.data_segments_out = number(),
            "unacked" => tcp.unacked_segments = number().unwrap_or_default(),
            "backoff" => tcp.timeouts_in_a_row = number().unwrap_or_default(),
            "retrans" => {
                let total = value.rsplit('/').next().and_then(|count| count.parse().ok());
                tcp.retransmitted_segments = total.unwrap_or_default();
            }
            "snd_wnd" => tcp.send_window_bytes = number(),
            _ => {}
        }
    }
}

/// `(r0,rb425984,t0,tb425984,f0,w0,o0,bl0,d0)`
fn memory(tcp: &mut Tcp, value: &str) {
    for part in value.trim_matches(['(', ')']).split(',') {
        let number = |name: &str| part.strip_prefix(name)?.parse::<u64>().ok();
        tcp.receive_buffer_bytes = tcp.receive_buffer_bytes.or(number("rb"));
        tcp.send_buffer_bytes = tcp.send_buffer_bytes.or(number("tb"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "State Recv-Q Send-Q Local Address:Port Peer Address:Port Process
LISTEN 0 128 0.0.0.0:22 0.0.0.0:*
ESTAB 0 0 192.0.2.5:49152 192.0.2.10:3260 users:((\"iscsid\",pid=812,fd=8))
\t skmem:(r0,rb425984,t0,tb425984,f0,w0,o0,bl0,d0) ts sack cubic wscale:7,9 rto:252 rtt:50.213/0.4 ato:40 mss:1448 pmtu:1500 rcvmss:1448 advmss:1448 cwnd:44 bytes_sent:7 data_segs_out:20000 send 10.1Mbps unacked:3 retrans:0/12 rcv_space:14480 minrtt:50.1 snd_wnd:64256
ESTAB 0 0 [::ffff:192.0.2.5%eth0]:3260 [::ffff:192.0.2.7]:41000
\t reno rtt:x/y mss:nonsense backoff:3 skmem:(((,rb,tbx
ESTAB 0 0 nowhere";

    #[test]
    fn connections_are_read_and_the_rest_passed_over() {
        let found = sockets(TEXT);
        assert_eq!(found.len(), 2);
        let one = &found[0];
        assert_eq!(one.remote, "192.0.2.10:3260".parse().unwrap());
        assert_eq!((one.rtt_us, one.rtt_min_us), (Some(50_213.0), Some(50_100.0)));
        assert_eq!(
            (one.receive_buffer_bytes, one.send_buffer_bytes),
            (Some(425_984), Some(425_984))
        );
        assert_eq!((one.cwnd_bytes, one.send_window_bytes), (Some(44 * 1448), Some(64_256)));
        assert_eq!((one.retransmitted_segments, one.data_segments_out), (12, Some(20_000)));
        assert_eq!((one.window_scaling, one.congestion_control.as_str()), (Some(true), "cubic"));
        let odd = &found[1];
        assert_eq!(odd.local, "192.0.2.5:3260".parse().unwrap());
        assert_eq!((odd.rtt_us, odd.timeouts_in_a_row, odd.window_scaling), (None, 3, Some(false)));
        assert!(sockets("").is_empty());
    }
}
