//! [`Positions`]: where each viewer has stopped in each video, so that he goes on there from
//! another device.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

/// Videos that one viewer has begun and not ended; one more forgets the one of longest ago.
const OF_ONE_MAX: usize = 1000;
/// No video is longer: a month.
pub(super) const SECONDS_MAX: f64 = 31.0 * 24.0 * 3600.0;

/// A place in a video, and since when it is that (seconds since 1970).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Place(f64, u64);

/// By name and video.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Positions(HashMap<String, HashMap<String, Place>>);

impl Positions {
    /// Seconds from the start.
    pub(super) fn get(&self, name: &str, video: &str) -> Option<f64> {
        self.0.get(name)?.get(video).map(|place| place.0)
    }

    /// Notes a place; the start is none.
    pub(super) fn set(&mut self, name: &str, video: &str, seconds: f64, now: u64) {
        let of_one = self.0.entry(name.to_owned()).or_default();
        if seconds <= 0.0 {
            of_one.remove(video);
        } else {
            of_one.insert(video.to_owned(), Place(seconds, now));
        }
        if of_one.len() > OF_ONE_MAX {
            let oldest = of_one.iter().min_by_key(|(_, place)| place.1);
            if let Some(oldest) = oldest.map(|(video, _)| video.clone()) {
                of_one.remove(&oldest);
            }
        }
        self.0.retain(|_, of_one| !of_one.is_empty());
    }

    /// Forgets those who are not there any more; tells whether there were some.
    pub(super) fn retain(&mut self, is_there: impl Fn(&str) -> bool) -> bool {
        let before = self.0.len();
        self.0.retain(|name, _| is_there(name));
        before != self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_viewer_has_his_own_and_not_too_many() {
        let mut positions = Positions::default();
        positions.set("anna", "a", 12.5, 1);
        positions.set("ben", "a", 3.0, 1);
        assert_eq!(positions.get("anna", "a"), Some(12.5));
        let kept = serde_json::to_string(&positions).unwrap();
        assert_eq!(serde_json::from_str::<Positions>(&kept).unwrap(), positions);
        positions.set("ben", "a", 0.0, 2);
        assert_eq!((positions.get("ben", "a"), positions.0.len()), (None, 1));
        for number in 0..OF_ONE_MAX as u64 {
            positions.set("anna", &format!("{number}"), 30.0, 2 + number);
        }
        assert_eq!(positions.0["anna"].len(), OF_ONE_MAX);
        assert_eq!((positions.get("anna", "a"), positions.get("anna", "0")), (None, Some(30.0)));
        assert!(positions.retain(|name| name != "anna") && positions.0.is_empty());
    }
}
