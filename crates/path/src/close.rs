//! Which connection to close when there is one too many.

use std::cmp::Ordering;

use super::tcp::{Connection, ConnectionId, median};

/// The share of the median rate below which a connection counts as a laggard.
const LAGGARD_SHARE: f64 = 0.5;

/// Which connection to close when there is one too many: the slowest, if it delivers less than half
/// of the median (it scatters the read times of all); otherwise the youngest, whose window is the
/// least warm; of two equally young ones the one with the higher id.
pub fn close_candidate(connections: &[Connection]) -> Option<ConnectionId> {
    let mut rates: Vec<f64> = connections.iter().filter_map(|c| c.bytes_per_s).collect();
    if rates.len() == connections.len() {
        let median = median(&mut rates)?;
        let slowest = connections
            .iter()
            .min_by(|a, b| a.bytes_per_s.unwrap_or(0.0).total_cmp(&b.bytes_per_s.unwrap_or(0.0)))?;
        if slowest.bytes_per_s.unwrap_or(0.0) < LAGGARD_SHARE * median {
            return Some(slowest.id);
        }
    }
    connections.iter().min_by(|a, b| by_age(a, b)).map(|c| c.id)
}

/// The younger first, and of two equally young ones the one with the higher id. An unknown age is
/// the youngest: nothing says that its window is warm.
fn by_age(a: &Connection, b: &Connection) -> Ordering {
    let age = |c: &Connection| c.age_s.unwrap_or(0.0);
    age(a).total_cmp(&age(b)).then_with(|| b.id.cmp(&a.id))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tcp;

    fn connection(id: u32, age_s: f64, bytes_per_s: f64) -> Connection {
        let (age_s, bytes_per_s) = (Some(age_s), Some(bytes_per_s));
        Connection { id: ConnectionId(id), age_s, bytes_per_s, tcp: Tcp::default() }
    }

    #[test]
    fn the_laggard_is_closed_first_then_the_youngest() {
        let mut all = vec![connection(1, 9.0, 10.0), connection(2, 1.0, 11.0)];
        all.push(connection(3, 5.0, 9.0));
        assert_eq!(close_candidate(&all), Some(ConnectionId(2)));
        all[0].bytes_per_s = Some(4.0);
        assert_eq!(close_candidate(&all), Some(ConnectionId(1)));
        all[0].bytes_per_s = None; // not comparable: age decides
        assert_eq!(close_candidate(&all), Some(ConnectionId(2)));
        all[2].age_s = Some(1.0);
        assert_eq!(close_candidate(&all), Some(ConnectionId(3)));
        assert_eq!(close_candidate(&[]), None);
    }
}
