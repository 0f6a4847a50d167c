//! Which connection to close when there is one too many.

use super::rate::STARTUP_GAIN;
use super::tcp::{Connection, ConnectionId, median};

/// The share of the median rate below which a connection counts as a laggard: it is more than a
/// round of slow start behind.
const LAGGARD_SHARE: f64 = 1.0 / STARTUP_GAIN;

/// Which connection to close when there is one too many: the slowest, if it delivers less than half
/// of the median (it scatters the read times of all); otherwise the youngest, whose window is the
/// least warm; of two equally young ones the one with the higher id.
pub fn close_candidate<'a>(
    connections: impl Iterator<Item = &'a Connection> + Clone,
) -> Option<ConnectionId> {
    // Where one rate is not known they cannot be compared.
    let rates: Option<Vec<f64>> = connections.clone().map(|one| one.bytes_per_s).collect();
    let slow = median(&mut rates.unwrap_or_default()).map_or(0.0, |median| LAGGARD_SHARE * median);
    let rate = |one: &Connection| one.bytes_per_s.unwrap_or(slow);
    let slowest = connections.clone().min_by(|a, b| rate(a).total_cmp(&rate(b)));
    let laggard = slowest.filter(|one| rate(one) < slow);
    // An unknown age is the youngest: nothing says that its window is warm.
    let age = |one: &Connection| one.age_s.unwrap_or(0.0);
    let youngest = connections.min_by(|a, b| age(a).total_cmp(&age(b)).then(b.id.cmp(&a.id)));
    laggard.or(youngest).map(|one| one.id)
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
        assert_eq!(close_candidate(all.iter()), Some(ConnectionId(2)));
        all[0].bytes_per_s = Some(4.0);
        assert_eq!(close_candidate(all.iter()), Some(ConnectionId(1)));
        all[0].bytes_per_s = None; // not comparable: age decides
        assert_eq!(close_candidate(all.iter()), Some(ConnectionId(2)));
        all[2].age_s = Some(1.0);
        assert_eq!(close_candidate(all.iter()), Some(ConnectionId(3)));
        assert_eq!(close_candidate([].iter()), None);
    }
}
